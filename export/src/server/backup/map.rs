//! Maps of disks: what has changed since the last backup, or what holds data. The answer is upstream's.

use std::ops::Range;

use axum::Json;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use podvirt_api::export::backup::BITMAP;
use serde::Serialize;

use super::Unserved;
use super::nbd::{ALLOCATION, DIRTY_BITMAP, NbdError, Session, Status};
use super::pool::{Pool, Stream};
use super::query::{self, Part};

/// Extents of a page where a request does not say how many; upstream's number.
const PAGE: u64 = 512;
/// Most extents of a page. A request for more gets these, and where the next page begins.
const MOST: u64 = 64 << 10;
/// Bytes that are asked about at a time.
const ASKED: u32 = 1 << 31;

/// A part of a disk that is the same all over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Extent {
    offset: u64,
    length: u64,
    r#type: u32,
    description: &'static str,
}

/// A page of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Map {
    extents: Vec<Extent>,
    /// Where the next page begins; none behind the last one.
    next_offset: Option<u64>,
}

/// What a map tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// What holds data.
    Allocation,
    /// What has changed.
    Changes,
}

/// Upstream's word for what an extent is.
fn description(kind: Kind, flags: u32) -> &'static str {
    match (kind, flags) {
        (Kind::Allocation, 0) => "data",
        (Kind::Allocation, 1) => "hole",
        (Kind::Allocation, 2) => "zero",
        (Kind::Allocation, 3) => "hole,zero",
        (Kind::Changes, 0) => "clean",
        (Kind::Changes, 1) => "dirty",
        _ => "unknown",
    }
}

/// A page that is being filled.
#[derive(Debug)]
struct Page {
    kind: Kind,
    part: Range<u64>,
    /// Extents that it may have.
    room: usize,
    map: Map,
}

impl Page {
    fn new(kind: Kind, part: Range<u64>, room: usize) -> Self {
        Page { kind, part, room, map: Map::default() }
    }

    /// What is to be asked about next; none once the page is done.
    fn asks(&self) -> Option<(u64, u32)> {
        let left = self.part.end.saturating_sub(self.part.start);
        let open = left > 0 && self.map.next_offset.is_none();
        open.then(|| (self.part.start, u32::try_from(left).map_or(ASKED, |left| left.min(ASKED))))
    }

    /// Takes what was told of the place that was asked about. Neighbours that are the same become one extent.
    fn add(&mut self, told: &[Status]) {
        for Status { length, flags } in told {
            let (offset, left) = (self.part.start, self.part.end.saturating_sub(self.part.start));
            let length = u64::from(*length).min(left);
            let full = self.map.extents.len() >= self.room;
            match self.map.extents.last_mut() {
                _ if length == 0 => return,
                Some(last) if last.r#type == *flags => last.length += length,
                _ if full => {
                    self.map.next_offset = Some(offset);
                    return;
                }
                _ => {
                    let description = description(self.kind, *flags);
                    self.map.extents.push(Extent { offset, length, r#type: *flags, description });
                }
            }
            self.part.start += length;
        }
    }
}

/// Answers with a page of a disk's map.
pub(super) async fn answer(pool: &Pool, volume: &str, uri: &Uri) -> Response {
    let asked = Part::of(uri).and_then(|part| Ok((part, room(uri)?)));
    let (part, room) = match asked {
        Ok(asked) => asked,
        Err(refusal) => return refusal.into_response(),
    };
    let changes = format!("{DIRTY_BITMAP}{BITMAP}");
    let (mut session, part) = match super::open(pool, volume, &[ALLOCATION, &changes], part).await {
        Ok(opened) => opened,
        Err(refusal) => return refusal,
    };
    let by = [(changes.as_str(), Kind::Changes), (ALLOCATION, Kind::Allocation)];
    let by = by.into_iter().find_map(|(name, kind)| Some((session.context(name)?, kind)));
    let read = match by {
        Some((context, kind)) => fill(&mut session, context, Page::new(kind, part, room)).await,
        None => Err(NbdError::Protocol("it tells nothing of what is where")),
    };
    match read {
        Ok(map) => {
            session.close().await;
            Json(map).into_response()
        }
        Err(error) => {
            tracing::warn!(volume, error = &error as &dyn std::error::Error, "the disk's map is not served");
            Unserved::from(error).into_response()
        }
    }
}

/// Extents that a request wants on a page.
fn room(uri: &Uri) -> Result<usize, query::Unusable> {
    const NAME: &str = "page_size";
    const ALLOWED: &str = "a number from 1 on";
    match query::number(uri, NAME, ALLOWED)?.unwrap_or(PAGE) {
        0 => Err(query::Unusable::Value { name: NAME, value: "0".to_owned(), allowed: ALLOWED }),
        room => Ok(usize::try_from(room.min(MOST)).unwrap_or(usize::MAX)),
    }
}

async fn fill(session: &mut Session<Stream>, context: u32, mut page: Page) -> Result<Map, NbdError> {
    while let Some((offset, length)) = page.asks() {
        page.add(&session.status(context, offset, length).await?);
    }
    Ok(page.map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(all: &[(u32, u32)]) -> Vec<Status> {
        all.iter().map(|(length, flags)| Status { length: *length, flags: *flags }).collect()
    }

    fn extents(page: &Page) -> Vec<(u64, u64, u32)> {
        page.map.extents.iter().map(|extent| (extent.offset, extent.length, extent.r#type)).collect()
    }

    #[test]
    fn neighbours_that_are_the_same_become_one_and_the_last_ends_with_the_part() {
        let mut page = Page::new(Kind::Changes, 100..1000, 512);
        assert_eq!(page.asks(), Some((100, 900)));
        page.add(&told(&[(100, 0), (100, 1)]));
        assert_eq!(page.asks(), Some((300, 700)));
        page.add(&told(&[(100, 1), (10_000, 0)]));
        assert_eq!(extents(&page), [(100, 100, 0), (200, 200, 1), (400, 600, 0)]);
        assert_eq!((page.asks(), page.map.next_offset), (None, None));
        // More than was asked about is not taken.
        page.add(&told(&[(5, 1)]));
        assert_eq!(page.map.extents.len(), 3);
    }

    #[test]
    fn a_page_ends_where_the_next_extent_begins() {
        let mut page = Page::new(Kind::Allocation, 0..u64::MAX, 2);
        assert_eq!(page.asks(), Some((0, ASKED)));
        page.add(&told(&[(512, 0), (512, 3)]));
        page.add(&told(&[(512, 3)]));
        assert_eq!(page.map.next_offset, None, "the last extent may go on");
        page.add(&told(&[(512, 0), (512, 3)]));
        assert_eq!((page.asks(), page.map.next_offset), (None, Some(1536)));
        assert_eq!(extents(&page), [(0, 512, 0), (512, 1024, 3)]);
    }

    #[test]
    fn the_words_are_upstreams() {
        use Kind::{Allocation, Changes};
        for (kind, flags, word) in [
            (Allocation, 0, "data"),
            (Allocation, 1, "hole"),
            (Allocation, 2, "zero"),
            (Allocation, 3, "hole,zero"),
            (Allocation, 99, "unknown"),
            (Changes, 0, "clean"),
            (Changes, 1, "dirty"),
            (Changes, 3, "unknown"),
        ] {
            assert_eq!(description(kind, flags), word);
        }
        let extent = Extent { offset: 0, length: 512, r#type: 1, description: "dirty" };
        let map = Map { extents: vec![extent], next_offset: None };
        let wanted = serde_json::json!({"extents": [{"offset": 0, "length": 512, "type": 1, "description": "dirty"}],
            "next_offset": null});
        assert_eq!(serde_json::to_value(map).unwrap(), wanted);
    }

    #[test]
    fn pages_have_a_size() {
        for (query, wanted) in [
            ("", Ok(512)),
            ("?page_size=", Ok(512)),
            ("?page_size=1", Ok(1)),
            ("?page_size=999999999", Ok(65_536)),
            ("?page_size=0", Err("page_size: '0': a number from 1 on is allowed")),
            ("?page_size=-1", Err("page_size: '-1': a number from 1 on is allowed")),
            ("?page_size=many", Err("page_size: 'many': a number from 1 on is allowed")),
        ] {
            let uri = format!("/exports/v/map{query}").parse().unwrap();
            assert_eq!(
                room(&uri).map_err(|error| error.to_string()),
                wanted.map_err(str::to_owned),
                "{query}"
            );
        }
    }
}
