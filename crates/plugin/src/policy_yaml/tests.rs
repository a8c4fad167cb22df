//! What a policy file may say, and how it is refused.

use super::*;

fn read(text: &str) -> Result<RouterPolicyConfig, String> {
    RouterPolicyConfig::from_yaml(text).map_err(|error| error.to_string())
}

/// Expects `text` to be refused with a message that holds every one of `parts`.
fn refused(text: &str, parts: &[&str]) {
    let message = read(text).expect_err(text);
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

fn selection(text: &str) -> WorkerSelectionConfig {
    read(text).unwrap().worker_selection.unwrap()
}

#[test]
fn a_whole_file_is_read() {
    let config = selection(
        "
worker_selection:
  aggregated: busy
  prefill: default
  instances:
    - name: busy
      type: least-busy
      parameters: {min_device_overlap_blocks: 0}
",
    );
    assert_eq!(config.aggregated.as_deref(), Some("busy"));
    assert_eq!(config.prefill.as_deref(), Some("default"));
    assert_eq!((config.decode, config.encode), (None, None));
    let instance = &config.instances[0];
    assert_eq!(
        (instance.name.as_str(), instance.policy_type.as_str()),
        ("busy", "least-busy")
    );
    let parameters = WorkerSelectionPolicyParameters::from_yaml("min_device_overlap_blocks: 0");
    assert_eq!(instance.parameters, parameters.unwrap());
}

#[test]
fn the_order_of_keys_and_instances_does_not_matter() {
    let one = selection(
        "worker_selection: {aggregated: a, instances: [{name: a, type: t}, {name: b, type: t}]}",
    );
    let other = selection(
        "worker_selection: {instances: [{type: t, name: b}, {type: t, name: a}], aggregated: a}",
    );
    assert_eq!(one.aggregated, other.aggregated);
    let names = |config: &WorkerSelectionConfig| {
        config
            .instances
            .iter()
            .map(|instance| instance.name.clone())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(names(&one), names(&other));
}

#[test]
fn an_empty_file_is_all_defaults() {
    for text in ["", "\n# nothing yet\n", "---\n", "~", "{}"] {
        assert_eq!(
            read(text).unwrap(),
            RouterPolicyConfig::default(),
            "{text:?}"
        );
    }
}

#[test]
fn keys_of_later_versions_are_refused_by_name() {
    for key in [
        "router",
        "default_policy_family",
        "policy_classes",
        "uncached_isl_buckets",
        "models",
        "request_classifier",
    ] {
        refused(
            &format!("{key}: {{}}"),
            &[&format!("{key} is not supported yet")],
        );
    }
}

#[test]
fn a_request_classifier_is_refused_beside_a_good_selection() {
    let text = "request_classifier: {type: admission, parameters: {most: 32}}
worker_selection: {aggregated: a, instances: [{name: a, type: t}]}";
    refused(text, &["request_classifier is not supported yet"]);
}

#[test]
fn unknown_keys_are_refused_with_their_path_and_the_nearest_key() {
    refused(
        "worker_selecton: {}",
        &[
            "unknown key worker_selecton",
            "did you mean worker_selection?",
        ],
    );
    refused(
        "worker_selection: {agregated: a, instances: [{name: a, type: t}]}",
        &[
            "unknown key worker_selection.agregated",
            "did you mean aggregated?",
        ],
    );
    refused(
        "worker_selection: {instances: [{name: a, typ: t}]}",
        &[
            "unknown key worker_selection.instances[0].typ",
            "did you mean type?",
        ],
    );
}

#[test]
fn there_is_no_selection_for_all_roles_in_the_file() {
    refused(
        "worker_selection: {default: a, instances: [{name: a, type: t}]}",
        &[
            "unknown key worker_selection.default",
            "known keys: aggregated, prefill, decode, encode, instances",
        ],
    );
}

#[test]
fn repeated_keys_are_refused_by_name_at_every_level() {
    refused(
        "worker_selection: {}\nworker_selection: {}",
        &["worker_selection", "duplicate"],
    );
    refused(
        "worker_selection: {aggregated: a, aggregated: b, instances: [{name: a, type: t}]}",
        &["aggregated", "duplicate"],
    );
    refused(
        "worker_selection: {instances: [{name: a, type: t, parameters: {x: 1, x: 2}}]}",
        &["\"x\"", "duplicate"],
    );
}

#[test]
fn a_merge_key_brings_in_what_the_anchor_holds() {
    let config = selection(
        "
worker_selection:
  aggregated: two
  instances:
    - &one
      name: one
      type: least-busy
      parameters: {min_device_overlap_blocks: 2}
    - <<: *one
      name: two
",
    );
    let [one, two] = config.instances.as_slice() else {
        panic!("{config:?}")
    };
    assert_eq!((one.name.as_str(), two.name.as_str()), ("one", "two"));
    assert_eq!(
        (&one.policy_type, &one.parameters),
        (&two.policy_type, &two.parameters)
    );
}

#[test]
fn an_anchor_outside_the_known_keys_is_refused_by_name() {
    let text = "
base: &b {type: least-busy}
worker_selection: {aggregated: a, instances: [{<<: *b, name: a}]}";
    refused(text, &["unknown key base"]);
    assert!(!read(text).unwrap_err().contains("missing"));
}

#[test]
fn a_merge_of_something_else_than_a_mapping_is_refused() {
    refused(
        "worker_selection: {instances: [{<<: 3, name: a, type: t}]}",
        &["merge key <<"],
    );
}

#[test]
fn two_instances_of_one_name_are_refused() {
    refused(
        "worker_selection: {instances: [{name: lb, type: t}, {name: lb, type: u}]}",
        &[
            "worker_selection.instances[1].name",
            "\"lb\"",
            "another instance",
        ],
    );
}

#[test]
fn names_and_types_are_made_of_letters_digits_and_three_signs() {
    for good in ["a", "Z9_.-", "-", "least-busy.v2"] {
        read(&format!(
            "worker_selection: {{instances: [{{name: '{good}', type: '{good}'}}]}}"
        ))
        .unwrap();
    }
    for bad in ["", " ", "a b", "a/b", "ä", "a\\n"] {
        refused(
            &format!("worker_selection: {{instances: [{{name: \"{bad}\", type: t}}]}}"),
            &["worker_selection.instances[0].name", "A-Z a-z 0-9 _ . -"],
        );
        refused(
            &format!("worker_selection: {{instances: [{{name: n, type: \"{bad}\"}}]}}"),
            &["worker_selection.instances[0].type", "A-Z a-z 0-9 _ . -"],
        );
    }
}

#[test]
fn no_instance_may_be_called_default() {
    refused(
        "worker_selection: {instances: [{name: default, type: t}]}",
        &["worker_selection.instances[0].name", "built-in"],
    );
}

#[test]
fn a_role_that_selects_an_unknown_instance_is_refused_with_the_nearest_one() {
    refused(
        "worker_selection: {aggregated: bussy, instances: [{name: busy, type: t}]}",
        &[
            "worker_selection.aggregated selects unknown instance \"bussy\"",
            "did you mean busy? known choices: busy, default",
        ],
    );
    refused(
        "worker_selection: {encode: nope}",
        &["\"nope\"", "known choices: default"],
    );
}

#[test]
fn a_selection_of_the_built_in_policy_needs_no_instance() {
    assert_eq!(
        selection("worker_selection: {decode: default}")
            .decode
            .as_deref(),
        Some("default")
    );
}

#[test]
fn a_section_that_says_nothing_is_refused() {
    for text in [
        "worker_selection:",
        "worker_selection: {}",
        "worker_selection: {instances: []}",
        "worker_selection: {prefill: }",
    ] {
        refused(text, &["worker_selection is empty"]);
    }
}

#[test]
fn missing_names_and_types_are_named() {
    refused(
        "worker_selection: {instances: [{parameters: {}}]}",
        &[
            "worker_selection.instances[0].name is missing",
            "worker_selection.instances[0].type is missing",
        ],
    );
}

#[test]
fn empty_parameters_are_no_parameters() {
    let with = selection("worker_selection: {instances: [{name: a, type: t, parameters: }]}");
    let without = selection("worker_selection: {instances: [{name: a, type: t}]}");
    assert_eq!(with, without);
}

#[test]
fn values_of_the_wrong_kind_are_named_and_shown() {
    let table = [
        ("[]", "policy file is a list; expected a mapping"),
        (
            "just words",
            "policy file is \"just words\"; expected a mapping",
        ),
        (
            "worker_selection: 3",
            "worker_selection is 3; expected a mapping",
        ),
        (
            "worker_selection: !x {}",
            "worker_selection is tagged !x; expected a mapping",
        ),
        (
            "worker_selection: {aggregated: 3}",
            "worker_selection.aggregated is 3; expected the name",
        ),
        (
            "worker_selection: {instances: {}}",
            "worker_selection.instances is a mapping; expected a list",
        ),
        (
            "worker_selection: {instances: [busy]}",
            "worker_selection.instances[0] is \"busy\"; expected a mapping",
        ),
        (
            "worker_selection: {instances: [{name: 1, type: t}]}",
            "worker_selection.instances[0].name is 1; expected a name",
        ),
        (
            "worker_selection: {instances: [{name: a, type: t, parameters: [1]}]}",
            "worker_selection.instances[0].parameters is a list; expected a mapping",
        ),
        ("3: {}", "a key of policy file is 3; expected a word"),
    ];
    for (text, expected) in table {
        refused(text, &[expected]);
    }
}

#[test]
fn text_that_is_not_yaml_is_refused_with_its_line() {
    refused("worker_selection: [", &["not valid yaml", "line"]);
    refused("a: 1\n---\nb: 2", &["not valid yaml"]);
}

#[test]
fn every_mistake_is_reported_at_once() {
    refused(
        "router: {}\nworker_selection: {prefil: a, instances: [{name: a}, {typ: t}]}",
        &[
            "router is not supported yet; leave it out; also unknown key worker_selection.prefil",
            "worker_selection.instances[0].type is missing",
            "unknown key worker_selection.instances[1].typ",
            "worker_selection.instances[1].name is missing",
        ],
    );
}

/// Random bytes of YAML's own alphabet: whatever the file holds, reading it ends in a value or an error.
#[test]
fn no_text_makes_the_reader_panic() {
    const PIECES: [&str; 22] = [
        "worker_selection",
        "instances",
        "name",
        "type",
        "parameters",
        "aggregated",
        "default",
        ": ",
        ", ",
        "{",
        "}",
        "[",
        "]",
        "\n",
        "  ",
        "- ",
        "a",
        "1",
        "<<",
        "*x",
        "&x ",
        "!t ",
    ];
    let seed = 11;
    println!("seed {seed}");
    let mut rng = crate::SeededRng::new(seed);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..5_000 {
        let text: String = (0..rng.below(14))
            .map(|_| PIECES[rng.below(PIECES.len())])
            .collect();
        match RouterPolicyConfig::from_yaml(&text) {
            Ok(_) => read += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty(), "{text:?}");
                refused += 1;
            }
        }
    }
    assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
}
