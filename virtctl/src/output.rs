//! Lines for the user. A reader that went away (`virtctl ... | head -1`) ends a command with an error, never a panic.

use std::io::{self, Write as _};

use anyhow::Context as _;

/// Prints one line to stdout: what a command answers.
///
/// # Errors
/// When stdout cannot be written.
pub(crate) fn say(line: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot write to the standard output")
}

/// JSON with each value on a line of its own, two spaces deeper at each level, and its fields in their order.
pub(crate) fn indented(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    // The bracket that was opened last, while nothing has come behind it.
    let mut opened = false;
    for letter in json.chars() {
        if in_text {
            out.push(letter);
            in_text = escaped || letter != '"';
            escaped = !escaped && letter == '\\';
            continue;
        }
        if letter.is_whitespace() {
            continue;
        }
        let closes = matches!(letter, '}' | ']');
        if closes {
            depth = depth.saturating_sub(1);
        }
        if opened != closes && (opened || closes) {
            line(&mut out, depth);
        }
        opened = matches!(letter, '{' | '[');
        out.push(letter);
        match letter {
            '"' => in_text = true,
            '{' | '[' => depth += 1,
            ',' => line(&mut out, depth),
            ':' => out.push(' '),
            _ => {}
        }
    }
    out
}

fn line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
}

/// Prints one line to stderr: what a user should know besides. Where stderr has no reader, nothing is lost by dropping it.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_as_by_others_with_its_fields_in_their_order() {
        let json = r#"{"b":"a\\\"{,}: ","a":[1,{"c":null}],"d":{},"e":[ ],"f":[[]]}"#;
        let expected = "{\n  \"b\": \"a\\\\\\\"{,}: \",\n  \"a\": [\n    1,\n    {\n      \"c\": null\n    }\n  ],\n  \
                        \"d\": {},\n  \"e\": [],\n  \"f\": [\n    []\n  ]\n}";
        assert_eq!(indented(json), expected);
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&indented(json)).unwrap(), value);
        assert_eq!(indented("null"), "null");
    }
}
