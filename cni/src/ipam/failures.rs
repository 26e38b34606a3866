//! Errors of a pass over many objects: what fails for one object must not keep the pass from the others.

use super::StoreError;

/// Errors of a pass so far.
#[derive(Debug, Default)]
pub struct Failures {
    first: Option<StoreError>,
    count: usize,
}

impl Failures {
    /// The value of `result`; its error is noted, and the pass goes on without it.
    ///
    /// # Errors
    /// The API server has not answered: the pass ends, since the next request would wait as long.
    pub fn note<T>(&mut self, result: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_answered => {
                self.count += 1;
                self.first.get_or_insert(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The end of the pass.
    ///
    /// # Errors
    /// Something failed in it: the first error, with the number of the others.
    pub fn finish(self) -> Result<(), StoreError> {
        let Some(mut first) = self.first else { return Ok(()) };
        if self.count > 1 {
            first.why = format!("{} (and {} other failures)", first.why, self.count - 1);
        }
        Err(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(why: &str, is_answered: bool) -> StoreError {
        StoreError { what: "get".into(), why: why.into(), is_answered }
    }

    #[test]
    fn a_pass_goes_on_after_a_refusal_and_ends_without_an_answer() {
        let mut failures = Failures::default();
        assert_eq!(failures.note(Ok(1)), Ok(Some(1)));
        assert_eq!(failures.note::<()>(Err(error("forbidden", true))), Ok(None));
        assert_eq!(failures.note::<()>(Err(error("unreadable", true))), Ok(None));
        assert!(failures.note::<()>(Err(error("no answer", false))).is_err());
        assert_eq!(failures.finish().unwrap_err().to_string(), "get: forbidden (and 1 other failures)");
        assert_eq!(Failures::default().finish(), Ok(()));
    }
}
