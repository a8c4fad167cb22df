//! What a provider is told, and how it refuses.

use serde::Deserialize;

use super::*;

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Guard {
    max_active_requests: u32,
    #[serde(default)]
    mode: Mode,
    #[serde(default)]
    nested: Option<Nested>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Hard,
    Bounded,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nested {
    weight: f64,
}

fn read(text: &str) -> Result<Guard, String> {
    let parameters = WorkerSelectionPolicyParameters::from_yaml(text).unwrap();
    parameters.deserialize().map_err(|error| error.to_string())
}

#[test]
fn parameters_are_read_as_the_providers_type() {
    let guard = read("{max_active_requests: 3, mode: bounded, nested: {weight: 1}}").unwrap();
    let expected = Guard {
        max_active_requests: 3,
        mode: Mode::Bounded,
        nested: Some(Nested { weight: 1.0 }),
    };
    assert_eq!(guard, expected);
}

#[test]
fn refusals_name_the_field_the_value_and_the_choices() {
    let table = [
        ("", "missing field `max_active_requests`"),
        (
            "max_active_requests: many",
            "max_active_requests: invalid type: string \"many\", expected u32",
        ),
        (
            "{max_active_requests: 1, nested: {weight: x}}",
            "nested.weight: invalid type: string \"x\", expected f64",
        ),
        (
            "max_active_request: 1",
            "unknown field `max_active_request`, expected one of `max_active_requests`, `mode`, `nested`; \
             did you mean max_active_requests?",
        ),
        (
            "{max_active_requests: 1, mode: bonded}",
            "mode: unknown variant `bonded`, expected `hard` or `bounded`; did you mean bounded?",
        ),
        (
            "{max_active_requests: 1, nested: {weihgt: 2}}",
            "nested: unknown field `weihgt`, expected `weight`; did you mean weight?",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(read(text).unwrap_err(), expected, "{text}");
    }
}

#[test]
fn a_text_that_is_no_mapping_is_refused() {
    assert!(WorkerSelectionPolicyParameters::from_yaml("[1, 2]").is_err());
    let twice = WorkerSelectionPolicyParameters::from_yaml("a: 1\na: 2").unwrap_err();
    assert!(
        twice.to_string().contains("duplicate entry with key \"a\""),
        "{twice}"
    );
}

#[test]
fn a_providers_own_message_is_shown_as_it_is() {
    let error = WorkerSelectionPolicyProviderError::new("weight must be finite");
    assert_eq!(error.to_string(), "weight must be finite");
}
