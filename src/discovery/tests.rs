//! What a change of the workers file does, and what it cannot do.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::file::FileSourceError;
use super::{FileSource, Metrics};
use crate::config::scratch::Scratch;

/// What `apply` was given: the text, and whether it was taken.
type Applied = mpsc::UnboundedReceiver<(String, bool)>;

/// Opens `path` with an `apply` that refuses texts beginning with `bad`.
fn open(path: &Path) -> (Result<CancellationToken, FileSourceError>, Applied) {
    let (sender, applied) = mpsc::unbounded_channel();
    let apply = move |text: &str| {
        let good = !text.starts_with("bad");
        drop(sender.send((text.to_owned(), good)));
        if good {
            Ok(text.lines().count())
        } else {
            Err("entry 2: worker_id 7 is listed twice".to_owned())
        }
    };
    let stop = CancellationToken::new();
    let opened = FileSource::open(path, apply, Metrics::default()).map(|file| {
        tokio::spawn(file.follow(stop.clone()));
        stop
    });
    (opened, applied)
}

async fn next(applied: &mut Applied) -> (String, bool) {
    applied.recv().await.unwrap()
}

#[tokio::test]
async fn a_file_is_applied_at_start_and_after_each_change() {
    let scratch = Scratch::new();
    let path = scratch.file("workers.yaml", "one");
    let (opened, mut applied) = open(&path);
    opened.unwrap();
    assert_eq!(next(&mut applied).await, ("one".to_owned(), true));
    fs::write(&path, "two").unwrap();
    assert_eq!(next(&mut applied).await, ("two".to_owned(), true));
}

#[tokio::test]
async fn a_file_put_in_place_by_a_rename_is_applied() {
    let scratch = Scratch::new();
    let path = scratch.file("workers.yaml", "one");
    let (opened, mut applied) = open(&path);
    opened.unwrap();
    next(&mut applied).await;
    fs::rename(scratch.file("workers.yaml.new", "two"), &path).unwrap();
    assert_eq!(next(&mut applied).await.0, "two");
}

#[tokio::test]
async fn the_symlink_swap_of_a_config_map_is_applied() {
    let scratch = Scratch::new();
    for (version, text) in [("..1", "one"), ("..2", "two")] {
        fs::create_dir(scratch.path().join(version)).unwrap();
        scratch.file(&format!("{version}/workers.yaml"), text);
    }
    let at = |name: &str| scratch.path().join(name);
    symlink("..1", at("..data")).unwrap();
    symlink("..data/workers.yaml", at("workers.yaml")).unwrap();
    let (opened, mut applied) = open(&at("workers.yaml"));
    opened.unwrap();
    assert_eq!(next(&mut applied).await.0, "one");
    symlink("..2", at("..data_tmp")).unwrap();
    fs::rename(at("..data_tmp"), at("..data")).unwrap();
    fs::remove_dir_all(at("..1")).unwrap();
    assert_eq!(next(&mut applied).await.0, "two");
    // The file is now in another directory, which is watched as well.
    scratch.file("..2/workers.yaml", "three");
    assert_eq!(next(&mut applied).await.0, "three");
}

#[tokio::test]
async fn a_bad_reload_is_refused_and_the_next_good_one_applied() {
    let scratch = Scratch::new();
    let path = scratch.file("workers.yaml", "one");
    let (opened, mut applied) = open(&path);
    opened.unwrap();
    next(&mut applied).await;
    fs::write(&path, "bad").unwrap();
    assert_eq!(next(&mut applied).await, ("bad".to_owned(), false));
    fs::remove_file(&path).unwrap();
    fs::write(&path, "three").unwrap();
    assert_eq!(next(&mut applied).await, ("three".to_owned(), true));
}

#[tokio::test]
async fn an_unchanged_text_is_not_applied_again() {
    let scratch = Scratch::new();
    let path = scratch.file("workers.yaml", "one");
    let (opened, mut applied) = open(&path);
    opened.unwrap();
    next(&mut applied).await;
    fs::write(&path, "one").unwrap();
    scratch.file("neighbour", "of no interest");
    fs::write(&path, "two").unwrap();
    // "one" again would come first.
    assert_eq!(next(&mut applied).await.0, "two");
}

#[tokio::test]
async fn following_ends_when_told_to_stop() {
    let scratch = Scratch::new();
    let path = scratch.file("workers.yaml", "one");
    let (opened, mut applied) = open(&path);
    next(&mut applied).await;
    opened.unwrap().cancel();
    // The task owns the sender: it is dropped when the task ends.
    assert_eq!(applied.recv().await, None);
}

#[tokio::test]
async fn a_file_that_cannot_be_applied_at_start_is_an_error_that_names_it() {
    let scratch = Scratch::new();
    let check = |path: &Path, expected: &str| {
        let error = open(path).0.expect_err("this file is no good").to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert!(error.contains(expected), "{error}");
    };
    check(&scratch.path().join("missing.yaml"), "cannot read");
    check(&scratch.path().join("no/such/dir.yaml"), "cannot watch");
    check(scratch.path(), "directory");
    check(
        &scratch.file("bad.yaml", "bad"),
        "worker_id 7 is listed twice",
    );
}
