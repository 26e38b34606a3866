//! A log in short: what a backend printed may be a hundred thousand times the same line.

use std::collections::VecDeque;

/// The last lines that are shown.
const LINES: usize = 20;
/// Characters of a line that are shown.
const WIDTH: usize = 200;

/// The last lines of a log. Lines that follow each other and differ in nothing but numbers are told once, with their
/// number; what is left out is mentioned.
pub(crate) fn excerpt(log: &str) -> String {
    let mut kept: VecDeque<(&str, usize)> = VecDeque::new();
    let mut left_out = 0;
    for line in log.lines().filter(|l| !l.trim().is_empty()) {
        match kept.back_mut() {
            Some((last, times)) if alike(last, line) => *times += 1,
            _ => kept.push_back((line, 1)),
        }
        if kept.len() > LINES {
            left_out += kept.pop_front().map_or(0, |(_, times)| times);
        }
    }
    let mut text = Vec::new();
    if left_out > 0 {
        text.push(format!("({left_out} lines before)"));
    }
    for (line, times) in kept {
        let end = line.char_indices().nth(WIDTH).map_or(line.len(), |(at, _)| at);
        let rest = if end < line.len() { "…" } else { "" };
        let again = if times > 1 { format!(" ({times} times)") } else { String::new() };
        text.push(format!("{}{rest}{again}", line.get(..end).unwrap_or(line)));
    }
    text.join("\n")
}

/// Whether two lines say the same of different things.
fn alike(a: &str, b: &str) -> bool {
    let letters = |line: &'_ str| line.bytes().filter(|b| !b.is_ascii_digit()).collect::<Vec<_>>();
    letters(a) == letters(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_log_is_shown_as_it_is() {
        assert_eq!(excerpt("one\n\ntwo\n"), "one\ntwo");
        assert_eq!(excerpt(""), "");
    }

    #[test]
    fn the_same_again_and_again_is_told_once() {
        let mut log = String::from("start\n");
        for at in 0..100_000 {
            log += &format!("{at}.5: Flow {at} (TCP): socket: Too many open files\n");
        }
        log += "end";
        assert_eq!(
            excerpt(&log),
            "start\n0.5: Flow 0 (TCP): socket: Too many open files (100000 times)\nend"
        );
    }

    #[test]
    fn of_a_long_log_the_end_is_shown() {
        let log: String = (0..100).map(|at| format!("{}\n", "x".repeat(at + 1))).collect();
        let text = excerpt(&log);
        assert!(text.starts_with("(80 lines before)\n"), "{text}");
        assert_eq!(text.lines().count(), LINES + 1);
        let long = excerpt(&"ä".repeat(WIDTH + 1));
        assert_eq!(long.chars().count(), WIDTH + 1);
        assert!(long.ends_with('…'));
    }
}
