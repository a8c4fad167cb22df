//! What a run shows: how often a conversation stayed on its worker, and how often the prediction was right.
//! Never prints; `draw` does.

use std::collections::HashMap;
use std::time::Duration;

use super::play::Turn;

/// Figures of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) requests: usize,
    /// Turns after the first.
    pub(super) later_turns: usize,
    /// Of those, the ones served by the worker of the turn before.
    pub(super) stayed: usize,
    pub(super) predicted_right: usize,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) first_token_p50: Duration,
    pub(super) first_token_p99: Duration,
}

pub(super) fn figures(turns: &[Turn]) -> Figures {
    let mut first_tokens: Vec<Duration> = turns.iter().map(|turn| turn.first_token).collect();
    first_tokens.sort_unstable();
    let (later_turns, moved) = moves(turns);
    Figures {
        requests: turns.len(),
        later_turns,
        stayed: later_turns - moved.len(),
        predicted_right: turns.iter().filter(|turn| predicted_right(turn)).count(),
        prompt_tokens: turns.iter().map(|turn| turn.prompt_tokens).sum(),
        cached_tokens: turns.iter().map(|turn| turn.cached_tokens).sum(),
        first_token_p50: percentile(&first_tokens, 50),
        first_token_p99: percentile(&first_tokens, 99),
    }
}

/// Each way in which a run with one request in flight broke the promise, in words.
pub(super) fn broken_promises(turns: &[Turn]) -> Vec<String> {
    let mut broken = Vec::new();
    for (before, turn) in moves(turns).1 {
        broken.push(format!(
            "conversation {}: turn {} went to {}, turn {} to {}",
            turn.conversation + 1,
            before.number + 1,
            before.worker,
            turn.number + 1,
            turn.worker,
        ));
    }
    broken.extend(wrong_predictions(turns));
    broken
}

/// Each turn whose cached tokens were not as predicted, in words.
pub(super) fn wrong_predictions(turns: &[Turn]) -> Vec<String> {
    let mut broken = Vec::new();
    for turn in turns.iter().filter(|turn| !predicted_right(turn)) {
        let predicted = turn.predicted_tokens;
        broken.push(format!(
            "conversation {}, turn {}: {} cached tokens were predicted, {} found {} of {}",
            turn.conversation + 1,
            turn.number + 1,
            predicted.map_or("no".to_owned(), |tokens| tokens.to_string()),
            turn.worker,
            turn.cached_tokens,
            turn.prompt_tokens,
        ));
    }
    broken
}

fn predicted_right(turn: &Turn) -> bool {
    turn.predicted_tokens == Some(turn.cached_tokens)
}

/// How many turns follow another one, and the pairs of turns that two workers served.
fn moves(turns: &[Turn]) -> (usize, Vec<(&Turn, &Turn)>) {
    let by_place: HashMap<(usize, usize), &Turn> = turns
        .iter()
        .map(|turn| ((turn.conversation, turn.number), turn))
        .collect();
    let mut pairs = Vec::new();
    for turn in turns {
        let before = turn
            .number
            .checked_sub(1)
            .map(|before| (turn.conversation, before));
        pairs.extend(
            before
                .and_then(|place| by_place.get(&place))
                .map(|before| (*before, turn)),
        );
    }
    let later_turns = pairs.len();
    pairs.retain(|(before, turn)| before.worker != turn.worker);
    (later_turns, pairs)
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(number: usize, worker: &str, cached: u64, predicted: u64) -> Turn {
        Turn {
            conversation: 0,
            number,
            worker: worker.to_owned(),
            prompt_tokens: 100,
            cached_tokens: cached,
            predicted_tokens: Some(predicted),
            first_token: Duration::from_millis(10 * (number as u64 + 1)),
        }
    }

    #[test]
    fn a_conversation_that_stays_keeps_the_promise() {
        let turns = [turn(0, "a", 0, 0), turn(1, "a", 96, 96)];
        assert_eq!(broken_promises(&turns), Vec::<String>::new());
        let figures = figures(&turns);
        assert_eq!(
            (figures.later_turns, figures.stayed, figures.predicted_right),
            (1, 1, 2)
        );
        assert_eq!(figures.first_token_p50, Duration::from_millis(10));
        assert_eq!(figures.first_token_p99, Duration::from_millis(20));
    }

    #[test]
    fn a_move_and_a_wrong_prediction_are_each_named() {
        // Out of order, as turns of several conversations end.
        let turns = [turn(1, "b", 0, 96), turn(0, "a", 0, 0)];
        let broken = broken_promises(&turns);
        assert_eq!(
            broken,
            [
                "conversation 1: turn 1 went to a, turn 2 to b",
                "conversation 1, turn 2: 96 cached tokens were predicted, b found 0 of 100",
            ]
        );
    }

    #[test]
    fn no_prediction_is_a_wrong_one() {
        let mut silent = turn(0, "a", 0, 0);
        silent.predicted_tokens = None;
        assert_eq!(figures(&[silent]).predicted_right, 0);
    }
}
