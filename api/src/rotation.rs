//! Lives of podvirt's certificates: `spec.certificateRotateStrategy.selfSigned` of the KubeVirt object.
//!
//! | field | for | when not set |
//! |---|---|---|
//! | `ca.duration`, or `caRotateInterval` | life of a CA | 168 hours |
//! | `ca.renewBefore`, or `caOverlapInterval` | how long before its end a CA is replaced, and how long it stays trusted after that | a fifth of the CA's life; an hour of trust |
//! | `server.duration`, or `certRotateInterval` | life of every other certificate | 24 hours |
//! | `server.renewBefore` | how long before its end such a certificate is replaced | a fifth of its life |
//!
//! Names and defaults are upstream's. The names of the second kind are deprecated there, and do not go together with the
//! others. podvirt is stricter than upstream in two points: a life is at least [`LIFE_LEAST`], and a certificate is not
//! renewed before a tenth of its life is over, since each renewal of a CA adds one to those that are trusted.

use std::time::Duration;

use crate::duration;
use crate::problem::{Problems, Reason};
use crate::v1::{CertConfig, KubeVirtSelfSignConfiguration};

/// The field.
pub(crate) const PATH: &str = "spec.certificateRotateStrategy.selfSigned";
/// Life of a CA where nothing is said: a week.
const CA_LIFE: Duration = Duration::from_secs(168 * 3600);
/// Life of another certificate where nothing is said: a day.
const SERVER_LIFE: Duration = Duration::from_secs(24 * 3600);
/// How long a CA stays trusted that was replaced, where nothing is said.
const OVERLAP: Duration = Duration::from_secs(3600);
/// Shortest life: a new certificate has to reach every daemon in a part of it.
pub const LIFE_LEAST: Duration = Duration::from_secs(300);
/// Shortest time before the end of a life at which a certificate is replaced, for the same reason.
pub const RENEW_LEAST: Duration = Duration::from_secs(60);

/// The life of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// From its making to its end.
    pub duration: Duration,
    /// How long before the end it is replaced.
    pub renew_before: Duration,
}

impl Life {
    /// A life of which the last fifth is left for the replacement.
    pub const fn of(duration: Duration) -> Self {
        Self { duration, renew_before: Duration::from_secs(duration.as_secs() / 5) }
    }
}

/// The lives of all certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Of a CA.
    pub ca: Life,
    /// Of every other certificate.
    pub server: Life,
    /// How long a CA that was replaced stays trusted at least.
    pub overlap: Duration,
}

impl Default for Rotation {
    fn default() -> Self {
        Self { ca: Life::of(CA_LIFE), server: Life::of(SERVER_LIFE), overlap: OVERLAP }
    }
}

impl Rotation {
    /// The lives that the object says. An object that the webhook would refuse may have been stored while no webhook
    /// answered: then the defaults hold.
    pub fn of(said: &KubeVirtSelfSignConfiguration) -> Self {
        read(said).map(|read| read.rotation()).unwrap_or_default()
    }
}

/// A span of time, and the field that says it.
#[derive(Clone, Copy)]
struct Given {
    field: &'static str,
    span: Duration,
}

/// What is said of one kind of certificate.
struct Said {
    duration: Option<Given>,
    renew_before: Option<Given>,
    /// Its life when nothing is said.
    default: Duration,
}

impl Said {
    fn life(&self) -> Life {
        let mut life = Life::of(self.duration.map_or(self.default, |given| given.span));
        if let Some(given) = self.renew_before {
            life.renew_before = given.span;
        }
        life
    }
}

struct Read {
    ca: Said,
    server: Said,
}

impl Read {
    fn rotation(&self) -> Rotation {
        let (ca, server) = (self.ca.life(), self.server.life());
        let said = self.ca.renew_before.map(|given| given.span);
        Rotation { ca, server, overlap: said.unwrap_or(OVERLAP.min(ca.renew_before)) }
    }
}

/// Notes what cannot be carried out.
pub(crate) fn check(said: &KubeVirtSelfSignConfiguration, problems: &mut Problems) {
    if let Err(found) = read(said) {
        problems.0.extend(found.0);
    }
}

/// Reads and judges.
fn read(said: &KubeVirtSelfSignConfiguration) -> Result<Read, Problems> {
    let mut problems = Problems::default();
    let old = [
        ("caRotateInterval", &said.ca_rotate_interval),
        ("certRotateInterval", &said.cert_rotate_interval),
        ("caOverlapInterval", &said.ca_overlap_interval),
    ];
    if let Some((field, _)) = old.iter().find(|(_, text)| text.is_some())
        && (said.ca.is_some() || said.server.is_some())
    {
        problems.add(
            Reason::FieldValueNotSupported,
            format!("{PATH}.{field}"),
            "is deprecated and does not go together with ca and server; either it or these are allowed",
        );
    }
    let [ca_life, server_life, ca_renewal] = old;
    let none = CertConfig::default();
    let (ca, server) = (said.ca.as_ref().unwrap_or(&none), said.server.as_ref().unwrap_or(&none));
    // As upstream: the deprecated field goes first.
    let mut first = |fields: &[(&'static str, &Option<String>)]| {
        let mut texts = fields.iter().filter_map(|(field, text)| Some((*field, text.as_deref()?)));
        texts.next().and_then(|(field, text)| span(field, text, &mut problems))
    };
    let ca = Said {
        duration: first(&[ca_life, ("ca.duration", &ca.duration)]),
        renew_before: first(&[ca_renewal, ("ca.renewBefore", &ca.renew_before)]),
        default: CA_LIFE,
    };
    let server = Said {
        duration: first(&[server_life, ("server.duration", &server.duration)]),
        renew_before: first(&[("server.renewBefore", &server.renew_before)]),
        default: SERVER_LIFE,
    };
    spans(&ca, "ca", &mut problems);
    spans(&server, "server", &mut problems);
    let (own, its_ca) = (server.life().duration, ca.life().duration);
    if own > its_ca {
        let field = server.duration.or(ca.duration).map_or("server.duration", |given| given.field);
        let message = format!(
            "a certificate of {own:?} would outlive its CA of {its_ca:?}; at most the life of the CA is allowed"
        );
        problems.add(Reason::FieldValueInvalid, format!("{PATH}.{field}"), message);
    }
    problems.into_result().map(|()| Read { ca, server })
}

fn span(field: &'static str, text: &str, problems: &mut Problems) -> Option<Given> {
    let span = duration::parse(text);
    if span.is_none() {
        problems.invalid(format!("{PATH}.{field}"), text, "a duration such as '24h' or '1h30m' is allowed");
    }
    span.map(|span| Given { field, span })
}

/// Judges the spans of one kind of certificate, `of` in the fields' names.
fn spans(said: &Said, of: &str, problems: &mut Problems) {
    let life = said.life();
    let mut tell = |given: Option<Given>, fallback: &str, message: String| {
        let field = given.map_or_else(|| format!("{of}.{fallback}"), |given| given.field.to_owned());
        problems.add(Reason::FieldValueInvalid, format!("{PATH}.{field}"), message);
    };
    if life.duration < LIFE_LEAST {
        let message = format!("{:?} is not allowed; at least {LIFE_LEAST:?} is", life.duration);
        return tell(said.duration, "duration", message);
    }
    let most = life.duration - life.duration / 10;
    if life.renew_before < RENEW_LEAST || life.renew_before > most {
        let message = format!(
            "{:?} is not allowed; for a life of {:?}, {RENEW_LEAST:?} to {most:?} is",
            life.renew_before, life.duration
        );
        tell(said.renew_before.or(said.duration), "renewBefore", message);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn said(value: Value) -> KubeVirtSelfSignConfiguration {
        serde_json::from_value(value).unwrap()
    }

    fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(60 * minutes)
    }

    #[test]
    fn what_is_not_said_is_upstreams_default() {
        let week = Rotation::of(&said(json!({})));
        assert_eq!(week, Rotation::default());
        assert_eq!(week.ca.renew_before, minutes(168 * 60 / 5));
        let long = Rotation::of(&said(json!({"ca": {"duration": "1000h"}})));
        assert_eq!(long.ca, Life { duration: minutes(60_000), renew_before: minutes(12_000) });
        assert_eq!((long.server, long.overlap), (week.server, minutes(60)));
        let short = Rotation::of(&said(json!({"ca": {"duration": "50m"}, "server": {"duration": "20m"}})));
        assert_eq!(short.overlap, minutes(10), "no longer than the old CA lives");
    }

    #[test]
    fn both_forms_say_the_same() {
        let new = json!({"ca": {"duration": "20m", "renewBefore": "12m"}, "server": {"duration": "14m"}});
        let old = json!({"caRotateInterval": "20m", "caOverlapInterval": "12m", "certRotateInterval": "14m"});
        let expected = Rotation {
            ca: Life { duration: minutes(20), renew_before: minutes(12) },
            server: Life { duration: minutes(14), renew_before: Duration::from_secs(168) },
            overlap: minutes(12),
        };
        assert_eq!(Rotation::of(&said(new)), expected);
        assert_eq!(Rotation::of(&said(old)), expected);
    }

    #[test]
    fn what_cannot_be_carried_out_is_told_with_its_field_and_counts_as_not_said() {
        for (value, field) in [
            (json!({"ca": {"duration": "a week"}}), "ca.duration"),
            (json!({"ca": {"duration": "-24h"}}), "ca.duration"),
            (
                json!({"ca": {"duration": "20m", "renewBefore": "20m"}, "server": {"duration": "10m"}}),
                "ca.renewBefore",
            ),
            (json!({"ca": {"renewBefore": "200h"}}), "ca.renewBefore"),
            (json!({"server": {"duration": "1h", "renewBefore": "2h"}}), "server.renewBefore"),
            (json!({"server": {"renewBefore": "25h"}}), "server.renewBefore"),
            (json!({"server": {"renewBefore": "0s"}}), "server.renewBefore"),
            (json!({"server": {"duration": "200h"}}), "server.duration"),
            (json!({"server": {"duration": "10s"}}), "server.duration"),
            (json!({"ca": {"duration": "12h"}}), "ca.duration"),
            (json!({"caRotateInterval": "48h", "ca": {}}), "caRotateInterval"),
            (json!({"certRotateInterval": "200h"}), "certRotateInterval"),
            (json!({"caOverlapInterval": "200h"}), "caOverlapInterval"),
            (json!({"caOverlapInterval": "20h", "server": {"duration": "20h"}}), "caOverlapInterval"),
        ] {
            let said = said(value.clone());
            let mut problems = Problems::default();
            check(&said, &mut problems);
            let fields: Vec<&str> = problems.0.iter().map(|problem| problem.field.as_str()).collect();
            assert_eq!(fields, [format!("{PATH}.{field}")], "{value}: {problems}");
            assert_eq!(Rotation::of(&said), Rotation::default(), "{value}");
        }
    }
}
