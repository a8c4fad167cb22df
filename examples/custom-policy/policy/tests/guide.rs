//! The sources of this example against a copy of the guide's items: equal to the last space.
//!
//! It never compares `use` lines, which the guide repeats per section and a file merges.

/// What follows the module docs and `use` lines of `source`, without its test module.
fn items(source: &str) -> String {
    let mut body = String::new();
    let mut in_use = false;
    for line in source.lines() {
        in_use |= line.starts_with("use ");
        let skipped = in_use || line.starts_with("//!");
        in_use &= !line.ends_with(';');
        if !skipped {
            body.push_str(line);
            body.push('\n');
        }
    }
    let end = body.find("#[cfg(test)]").unwrap_or(body.len());
    format!("{}\n", body[..end].trim_matches('\n'))
}

#[test]
fn the_policy_is_the_guides() {
    assert_eq!(
        items(include_str!("../src/least_busy.rs")),
        include_str!("../../tests/data/policy.txt")
    );
}

#[test]
fn the_catalog_is_the_guides() {
    assert_eq!(
        items(include_str!("../../catalog/src/lib.rs")),
        include_str!("../../tests/data/catalog.txt")
    );
}

#[test]
fn the_program_is_the_guides() {
    assert_eq!(
        items(include_str!("../../epp/src/main.rs")),
        include_str!("../../tests/data/epp.txt")
    );
}

#[test]
fn the_configuration_is_the_guides() {
    assert_eq!(
        include_str!("../../worker-selection.yaml"),
        include_str!("../../tests/data/worker-selection.yaml")
    );
}
