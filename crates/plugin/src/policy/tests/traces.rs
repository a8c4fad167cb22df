//! A traced selection writes down how it came about.

use super::*;

#[test]
fn a_trace_holds_verdicts_contributions_and_the_pick() {
    let mut policy = policy(
        vec![
            filter(|row| Ok(id(row) != 1)),
            filter(|row| Ok(id(row) != 2)),
        ],
        vec![scorer(|row| Ok(cost_of(row))), scorer(|_| Ok(0.5))],
        lowest(),
    );
    let signals = RequestSignals::default();
    let mut trace = PolicyTrace {
        picked: Some(77),
        ..PolicyTrace::default()
    };
    let mut rows = vec![row(1), row(4), row(2), row(3)];
    policy
        .select_traced(
            &WorkerSelectionContext::new(&signals),
            &mut rows,
            &mut trace,
        )
        .unwrap();
    let verdicts: Vec<Option<usize>> = trace.rows.iter().map(|row| row.rejected_by).collect();
    assert_eq!(verdicts, [Some(0), None, Some(1), None]);
    let contributions: Vec<&[f64]> = trace
        .rows
        .iter()
        .map(|row| row.contributions.as_slice())
        .collect();
    assert_eq!(
        contributions,
        [&[] as &[f64], &[4.0, 0.5], &[], &[3.0, 0.5]]
    );
    assert_eq!(trace.picked, Some(3));
    assert_eq!(
        (trace.rows[3].cost(), &trace.rows[3].candidate),
        (3.5, &row(3))
    );
}

#[test]
fn a_trace_of_a_failed_selection_shows_the_cause() {
    let mut policy = policy(
        Vec::new(),
        vec![scorer(|row| Ok(if id(row) == 2 { f64::NAN } else { 1.0 }))],
        lowest(),
    );
    let signals = RequestSignals::default();
    let mut trace = PolicyTrace::default();
    let mut rows = vec![row(1), row(2)];
    policy
        .select_traced(
            &WorkerSelectionContext::new(&signals),
            &mut rows,
            &mut trace,
        )
        .unwrap_err();
    assert_eq!(trace.picked, None);
    assert!(trace.rows[1].contributions[0].is_nan());
}
