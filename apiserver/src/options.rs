//! Bodies of the subresources' requests.

use serde::de::DeserializeOwned;

use crate::status::Status;

/// Reads options; no body, and `null`, mean none.
///
/// # Errors
///
/// The body is no JSON of these options.
pub fn read<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, Status> {
    if body.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    let options: Option<T> = serde_json::from_slice(body)
        .map_err(|error| Status::bad_request(format!("the options cannot be read: {error}")))?;
    Ok(options.unwrap_or_default())
}

/// Whether nothing is to be stored.
///
/// # Errors
///
/// The list holds something else than `All`.
pub fn is_dry_run(dry_run: &[String]) -> Result<bool, Status> {
    match dry_run.iter().find(|value| *value != "All") {
        Some(value) => Err(Status::bad_request(format!("dryRun '{value}' is not allowed; All is"))),
        None => Ok(!dry_run.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use podvirt_api::v1::StopOptions;

    use super::*;

    #[test]
    fn no_options_are_default_options() {
        for body in ["", " \n", "null", "{}"] {
            assert_eq!(read::<StopOptions>(body.as_bytes()).unwrap(), StopOptions::default(), "{body:?}");
        }
        assert_eq!(read::<StopOptions>(br#"{"gracePeriod":0}"#).unwrap().grace_period, Some(0));
        for body in ["{", "[1]", r#"{"gracePeriod":"x"}"#] {
            assert_eq!(read::<StopOptions>(body.as_bytes()).unwrap_err().code, 400, "{body}");
        }
    }

    #[test]
    fn dry_run_is_all_or_nothing() {
        assert!(!is_dry_run(&[]).unwrap());
        assert!(is_dry_run(&["All".into()]).unwrap());
        assert_eq!(is_dry_run(&["Some".into()]).unwrap_err().code, 400);
    }
}
