//! Names and secret words that are made.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use anyhow::bail;
use rustls::crypto::ring;

/// Letters of a name that is made: no vowels, so that they make no word, and nothing that looks like another.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// `prefix` and so many random letters.
pub(crate) fn name(prefix: &str, letters: usize) -> String {
    format!("{prefix}{}", suffix(RandomState::new().build_hasher().finish(), letters))
}

/// So many letters of a random number.
fn suffix(random: u64, letters: usize) -> String {
    let count = LETTERS.len() as u64;
    let letter = |rest: &mut u64| {
        let place = usize::try_from(*rest % count).unwrap_or(0);
        *rest /= count;
        LETTERS.get(place).copied().map(char::from)
    };
    std::iter::repeat_n((), letters).scan(random, |rest, ()| letter(rest)).collect()
}

/// Letters and digits that cannot be guessed.
///
/// # Errors
/// When the system gives no random numbers.
pub(crate) fn secret(length: usize) -> anyhow::Result<String> {
    const SECRET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = vec![0; length];
    if ring::default_provider().secure_random.fill(&mut bytes).is_err() {
        bail!("the system gives no random numbers");
    }
    Ok(bytes.iter().map(|byte| char::from(SECRET[usize::from(byte % 32)])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_name_has_letters_that_names_may_have() {
        for random in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            let suffix = suffix(random, 5);
            assert_eq!(suffix.len(), 5);
            assert!(suffix.bytes().all(|byte| LETTERS.contains(&byte)), "{suffix}");
        }
        let name = name("vm-", 6);
        assert!(name.starts_with("vm-") && name.len() == 9, "{name}");
    }

    #[test]
    fn secret_words_differ() {
        let (one, other) = (secret(20).unwrap(), secret(20).unwrap());
        assert!(one.len() == 20 && one != other);
    }
}
