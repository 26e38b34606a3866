//! Tables and units for people.

/// A time in its largest two units.
pub(super) fn time(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..10 => format!("{}.{}s", seconds, millis % 1000 / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Columns as wide as their widest cell; a title with `>` in front is aligned to the right.
pub(super) struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(titles: &[&str]) -> Table {
        let right = titles.iter().map(|t| t.starts_with('>')).collect();
        let titles = titles.iter().map(|t| t.trim_start_matches('>').to_owned()).collect();
        Table { right, rows: vec![titles] }
    }

    pub(super) fn bare(columns: usize) -> Table {
        Table { right: vec![false; columns], rows: Vec::new() }
    }

    pub(super) fn row<'a>(&mut self, cells: impl IntoIterator<Item = &'a str>) {
        self.rows.push(cells.into_iter().map(str::to_owned).collect());
    }

    pub(super) fn text(&self) -> String {
        let width = |column: usize| {
            self.rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), right) in row.iter().zip(&widths).zip(&self.right) {
                line += &if *right { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// A number of bytes, or of bytes a second, in four digits at most.
pub(super) fn size(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["", "K", "M", "G", "T"] {
        if value < 999.5 {
            return if unit.is_empty() || value >= 99.95 {
                format!("{value:.0}{unit}")
            } else {
                format!("{value:.1}{unit}")
            };
        }
        value /= 1000.0;
    }
    format!("{value:.0}P")
}

/// A round trip in milliseconds with three digits.
pub(super) fn round_trip(micros: u32) -> String {
    let ms = f64::from(micros) / 1000.0;
    match micros {
        0..10_000 => format!("{ms:.2}"),
        10_000..100_000 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_two_units() {
        let cases =
            [(0, "0.0s"), (9_990, "9.9s"), (59_999, "59s"), (3_600_000, "1h00m"), (90_000_000, "1d01h")];
        for (millis, text) in cases {
            assert_eq!(time(millis), text);
        }
    }

    #[test]
    fn sizes_have_four_digits_at_most() {
        let cases = [(0.0, "0"), (999.0, "999"), (1000.0, "1.0K"), (99_949.0, "99.9K"), (99_950.0, "100K")];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
        assert_eq!((size(999_600.0).as_str(), size(1.5e9).as_str()), ("1.0M", "1.5G"));
        assert_eq!([50, 1234, 12_345, 250_000].map(round_trip).join(" "), "0.05 1.23 12.3 250");
    }
}
