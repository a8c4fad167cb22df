//! Finds the name that was probably meant; never replaces one.

/// The closest of `known`, if it is close enough to be a slip of the pen.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (name.chars().count() / 4).clamp(1, 4);
    known
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions and substitutions between the two, case aside.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, letter) in left.to_lowercase().chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, other) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = substituted.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_slip_finds_its_name_and_a_stranger_finds_none() {
        let known = ["POINTSMAN_HEALTH_PORT", "POINTSMAN_LOG", "POINTSMAN_CONFIG"];
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(nearest(name, known), expected, "{name}");
        };
        check("POINTSMAN_HEATLH_PORT", Some("POINTSMAN_HEALTH_PORT"));
        check("POINTSMAN_HEALTHPORT", Some("POINTSMAN_HEALTH_PORT"));
        check("pointsman_conifg", Some("POINTSMAN_CONFIG"));
        check("POINTSMAN_LOGS", Some("POINTSMAN_LOG"));
        check("POINTSMAN_COMPLETELY_OTHER", None);
        check("", None);
    }
}
