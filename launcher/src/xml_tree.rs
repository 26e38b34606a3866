//! XML as a tree whose parts are kept as they were written: what is not changed is written as it was read.

use std::fmt::Write as _;

use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::attributes::{AttrError, Attribute};
use quick_xml::events::{BytesStart, Event};

/// An element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    /// Its name, with its prefix.
    pub(crate) name: String,
    /// Names and values, these as they stand between the quotes.
    pub(crate) attributes: Vec<(String, String)>,
    /// What is inside.
    pub(crate) children: Vec<Node>,
}

/// What stands in an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// An element.
    Element(Element),
    /// Anything else, as it was written.
    Raw(String),
}

/// Why a text is no document.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// It is no XML.
    #[error(transparent)]
    Xml(#[from] quick_xml::Error),
    /// A tag is none.
    #[error(transparent)]
    Attribute(#[from] AttrError),
    /// It has more than its one element.
    #[error("it has more than one element")]
    Several,
    /// An element has no end.
    #[error("the element {0} does not end")]
    Unclosed(String),
    /// It has no element.
    #[error("it has no element")]
    Empty,
}

/// A document.
#[derive(Debug)]
pub(crate) struct Document {
    before: String,
    /// Its element.
    pub(crate) root: Element,
}

impl Document {
    /// Reads a document.
    pub(crate) fn read(text: &str) -> Result<Document, TreeError> {
        let mut reader = Reader::from_str(text);
        let (mut before, mut root) = (String::new(), None);
        let mut open: Vec<Element> = Vec::new();
        loop {
            let start = reader.buffer_position();
            let event = reader.read_event()?;
            let closed = match event {
                Event::Start(tag) => {
                    open.push(Element::of(&tag)?);
                    continue;
                }
                Event::Empty(tag) => Some(Element::of(&tag)?),
                Event::End(_) => open.pop(),
                Event::Eof => break,
                _ => {
                    let (start, end) = (usize::try_from(start), usize::try_from(reader.buffer_position()));
                    let raw = start.ok().zip(end.ok()).and_then(|(start, end)| text.get(start..end));
                    let raw = raw.unwrap_or_default();
                    match open.last_mut() {
                        Some(parent) => parent.children.push(Node::Raw(raw.to_owned())),
                        None if root.is_none() => before.push_str(raw),
                        None => {}
                    }
                    continue;
                }
            };
            match (open.last_mut(), closed) {
                (Some(parent), Some(closed)) => parent.children.push(Node::Element(closed)),
                (None, Some(closed)) if root.is_none() => root = Some(closed),
                _ => return Err(TreeError::Several),
            }
        }
        if let Some(unclosed) = open.pop() {
            return Err(TreeError::Unclosed(unclosed.name));
        }
        root.map(|root| Document { before, root }).ok_or(TreeError::Empty)
    }

    /// The document's text.
    pub(crate) fn write(&self) -> String {
        let mut out = self.before.clone();
        self.root.write(&mut out);
        out.push('\n');
        out
    }
}

impl Element {
    fn of(tag: &BytesStart<'_>) -> Result<Element, TreeError> {
        let attribute = |attribute: Result<Attribute<'_>, AttrError>| {
            let attribute = attribute?;
            Ok((attribute.key.as_ref().to_owned(), attribute.value.into_owned()))
        };
        Ok(Element {
            name: tag.name().as_ref().to_owned(),
            attributes: tag.attributes().map(attribute).collect::<Result<_, TreeError>>()?,
            children: Vec::new(),
        })
    }

    /// Its name without a prefix.
    pub(crate) fn local(&self) -> &str {
        self.name.rsplit(':').next().unwrap_or_default()
    }

    /// Elements inside of this name, whatever their prefix.
    pub(crate) fn all<'a>(&'a self, local: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter_map(move |child| match child {
            Node::Element(element) if element.local() == local => Some(element),
            _ => None,
        })
    }

    /// The same, to be changed.
    pub(crate) fn all_mut<'a>(&'a mut self, local: &'a str) -> impl Iterator<Item = &'a mut Element> {
        self.children.iter_mut().filter_map(move |child| match child {
            Node::Element(element) if element.local() == local => Some(element),
            _ => None,
        })
    }

    /// The first of them.
    pub(crate) fn child(&self, local: &str) -> Option<&Element> {
        self.children.iter().find_map(|child| match child {
            Node::Element(element) if element.local() == local => Some(element),
            _ => None,
        })
    }

    /// The value of an attribute, without its escapes.
    pub(crate) fn value(&self, attribute: &str) -> Option<String> {
        let (_, raw) = self.attributes.iter().find(|(name, _)| name == attribute)?;
        Some(unescape(raw).map_or_else(|_| raw.clone(), std::borrow::Cow::into_owned))
    }

    /// Gives an attribute a value that has nothing to be escaped.
    pub(crate) fn set(&mut self, attribute: &str, value: &str) {
        match self.attributes.iter_mut().find(|(name, _)| name == attribute) {
            Some((_, there)) => value.clone_into(there),
            None => self.attributes.push((attribute.to_owned(), value.to_owned())),
        }
    }

    fn write(&self, out: &mut String) {
        out.push('<');
        out.push_str(&self.name);
        for (name, raw) in &self.attributes {
            // It may have stood between single quotes.
            let _ = write!(out, " {name}=\"{}\"", raw.replace('"', "&quot;"));
        }
        if self.children.is_empty() {
            out.push_str("/>");
            return;
        }
        out.push('>');
        for child in &self.children {
            match child {
                Node::Element(element) => element.write(out),
                Node::Raw(raw) => out.push_str(raw),
            }
        }
        let _ = write!(out, "</{}>", self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_changed_is_written_as_it_was_read() {
        let text = "<?xml version='1.0'?><!-- a --><d:a xmlns:d=\"u\" b='say \"x\" &amp; &#34;y&#34;'>1 &lt; 2<![CDATA[<&]]><b/>\n<c e=\"\"></c></d:a>";
        let document = Document::read(text).unwrap();
        assert_eq!(document.root.local(), "a");
        assert_eq!(document.root.value("b").unwrap(), "say \"x\" & \"y\"");
        assert_eq!(document.root.child("c").unwrap().value("e").unwrap(), "");
        let written = document.write();
        assert_eq!(
            written,
            "<?xml version='1.0'?><!-- a --><d:a xmlns:d=\"u\" b=\"say &quot;x&quot; &amp; &#34;y&#34;\">1 &lt; 2<![CDATA[<&]]><b/>\n<c e=\"\"/></d:a>\n"
        );
        assert_eq!(Document::read(&written).unwrap().write(), written);
    }

    #[test]
    fn what_is_no_document_is_refused() {
        for text in ["", "words", "<a>", "<a></b>", "<a/><b/>", "<a b=1/>"] {
            assert!(Document::read(text).is_err(), "{text}");
        }
    }
}
