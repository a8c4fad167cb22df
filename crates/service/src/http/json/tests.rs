use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const LISTS: Lists = &[("tokens", ListOf::Tokens), ("hashes", ListOf::Hashes)];

fn parse(text: &str) -> Result<Object<'_>, JsonError> {
    Object::parse(text.as_bytes(), LISTS)
}

fn tokens(list: &str) -> Result<Option<Vec<u32>>, String> {
    let text = format!("{{\"tokens\": {list}}}");
    let mut object = parse(&text).map_err(|error| error.to_string())?;
    object.tokens("tokens").map_err(|error| error.to_string())
}

fn hashes(list: &str) -> Option<Vec<u64>> {
    let text = format!("{{\"hashes\":{list}}}");
    parse(&text).unwrap().hashes("hashes").ok()?
}

#[test]
fn fields_are_found_whatever_stands_around_them() {
    let text = r#" { "a" : 1 , "b\u0062" : "x" , "c":null,"d":{"e":[1,{"f":"]}"}]} } "#;
    let object = parse(text).unwrap();
    assert_eq!(object.get::<u64>("a").unwrap(), Some(1));
    assert_eq!(object.get::<String>("bb").unwrap().as_deref(), Some("x"));
    assert_eq!(object.get::<u64>("c").unwrap(), None);
    assert_eq!(object.get::<u64>("missing").unwrap(), None);
    let inner = object.object("d", &[]).unwrap().unwrap();
    assert!(inner.get::<serde_json::Value>("e").unwrap().is_some());
    assert!(parse("{}").is_ok());
    let twice = parse(r#"{"a":1,"a":2}"#).unwrap();
    assert_eq!(twice.get::<u64>("a").unwrap(), Some(2));
}

#[test]
fn what_is_no_object_is_refused() {
    let broken = [
        "",
        " ",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\":1}x",
        "{\"a\":1} {}",
        "{\"a\":01}",
        "{\"a\":[1,]}",
        "{\"a\" 1}",
        "{\"a\"ü:1}",
        "{\"tokens\":[1,]}",
        "{\"tokens\":[1 2]}",
        "{\"tokens\":[01]}",
        "{\"a\\q\":1}",
        "{\"a\":\"\n\"}",
    ];
    for text in broken {
        let error = parse(text).unwrap_err();
        assert!(matches!(error, JsonError::Syntax { .. }), "{text}: {error}");
    }
    for text in ["[]", "1", "null", "\"x\""] {
        assert_eq!(parse(text).unwrap_err(), JsonError::NotAnObject, "{text}");
    }
    assert!(Object::parse(b"{\"a\":\"\xff\"}", &[]).is_err());
}

#[test]
fn a_wrong_field_is_named_and_its_content_is_not_told_whole() {
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(10_000));
    let error = parse(&long).unwrap().get::<u64>("a").unwrap_err();
    let JsonError::Field { field, reason } = error else {
        panic!("{error}");
    };
    assert_eq!(field, "a");
    assert!(reason.chars().count() < 300 && !reason.contains("line"));
    let missing = parse("{}").unwrap().require::<u64>("a").unwrap_err();
    assert_eq!(missing.to_string(), "a is required");
}

#[test]
fn nesting_of_any_depth_costs_no_stack() {
    let depth = 200_000;
    let text = format!("{{\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse(&text).is_ok());
    assert!(parse(&text[..depth]).is_err());
    let wrong = parse(&text).unwrap().get::<Vec<u64>>("x").unwrap_err();
    assert!(matches!(wrong, JsonError::Field { .. }));
}

#[test]
fn ids_are_read_at_their_bounds() {
    assert_eq!(tokens("[]"), Ok(Some(vec![])));
    assert_eq!(tokens("null"), Ok(None));
    assert_eq!(
        tokens("[ 0 ,1,\n4294967295, 12345678 ,123456789]"),
        Ok(Some(vec![0, 1, u32::MAX, 12_345_678, 123_456_789]))
    );
    let text = format!("[{},{},{}]", u64::MAX, i64::MAX, i64::MIN);
    let bounds = vec![u64::MAX, i64::MAX.cast_unsigned(), i64::MIN.cast_unsigned()];
    assert_eq!(hashes(&text), Some(bounds));
    let both = hashes("[-1,18446744073709551615]");
    assert_eq!(both, Some(vec![u64::MAX, u64::MAX]));
}

#[test]
fn what_is_no_id_is_refused_by_its_place() {
    let wrong = [
        "[1,4294967296]",
        "[1,-1]",
        "[1,1.0]",
        "[1,1e3]",
        "[1,\"2\"]",
        "[1,null]",
        "[1,[2]]",
        "[1,99999999999999999999999]",
    ];
    for list in wrong {
        let error = tokens(list).unwrap_err();
        assert!(error.starts_with("tokens has an element"), "{error}");
        assert!(error.contains("number 1,"), "{error}");
    }
    for value in ["1", "\"1\"", "{}", "true"] {
        assert!(tokens(value).unwrap_err().contains("must be a list"));
    }
    assert_eq!(hashes("[18446744073709551616]"), None);
    assert_eq!(hashes("[-9223372036854775809]"), None);
    assert_eq!(hashes("[100000000000000000000]"), None);
}

#[test]
fn lists_are_read_as_serde_reads_them() {
    let seed = 0x5eed_0006;
    println!("seed {seed:#x}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..5_000 {
        let ids: Vec<u64> = (0..random.random_range(0..20))
            .map(|_| random.random::<u64>() >> random.random_range(0..64))
            .collect();
        let signed = random.random_bool(0.5);
        let texts: Vec<String> = ids
            .iter()
            .map(|id| {
                if signed {
                    id.cast_signed().to_string()
                } else {
                    id.to_string()
                }
            })
            .collect();
        let separator = [",", ", ", " ,\n"][random.random_range(0..3)];
        let text = format!("[{}]", texts.join(separator));
        assert_eq!(hashes(&text), Some(ids));
        let small: Option<Vec<u32>> = serde_json::from_str(&text).ok();
        assert_eq!(tokens(&text).ok().flatten(), small, "{text}");
    }
}

/// Of a list of ids one byte is changed, or put in, or taken out: what is read is what serde reads.
#[test]
fn broken_lists_are_read_or_refused_as_serde_does() {
    const BYTES: &[u8] = b"0019,, -+.e[]\"n\t/:\x01";
    let seed = 0x5eed_0007;
    println!("seed {seed:#x}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut read = [0; 2];
    for _ in 0..40_000 {
        let most_bits = [17, 24, 33, 64][random.random_range(0..4)];
        let texts: Vec<String> = (0..random.random_range(1..60))
            .map(|_| random.random::<u64>() >> random.random_range(64 - most_bits..64))
            .map(|id| id.to_string())
            .collect();
        let separator = [",", ", "][random.random_range(0..2)];
        let mut text = format!("[{}]", texts.join(separator)).into_bytes();
        let at = random.random_range(1..text.len() - 1);
        let byte = BYTES[random.random_range(0..BYTES.len())];
        match random.random_range(0..3) {
            0 => text[at] = byte,
            1 => text.insert(at, byte),
            _ => drop(text.remove(at)),
        }
        let text = String::from_utf8(text).unwrap();
        let ids = ids::read::<u32>(text.as_bytes(), 0).ok();
        let expected: Option<Vec<u32>> = serde_json::from_str(&text).ok();
        let whole = ids.filter(|(_, end)| *end == text.len());
        assert_eq!(whole.map(|(ids, _)| ids), expected, "{text}");
        let hashes = ids::read::<u64>(text.as_bytes(), 0).ok();
        let expected_hashes: Option<Vec<i128>> = serde_json::from_str(&text).ok();
        let expected_hashes = expected_hashes.and_then(|list| {
            list.into_iter()
                .map(|id| {
                    let signed = i64::try_from(id).ok().map(i64::cast_unsigned);
                    signed.or_else(|| u64::try_from(id).ok())
                })
                .collect::<Option<Vec<u64>>>()
        });
        let whole = hashes.filter(|(_, end)| *end == text.len());
        read[usize::from(expected.is_some())] += 1;
        assert_eq!(whole.map(|(ids, _)| ids), expected_hashes, "{text}");
    }
    assert!(read.iter().all(|count| *count > 1_000), "{read:?}");
}

#[test]
fn a_short_list_before_much_else_holds_little() {
    let text = format!("[1,2,3]{}", " ".repeat(100_000));
    let (list, end) = ids::read::<u32>(text.as_bytes(), 0).unwrap();
    assert_eq!((list.as_slice(), end), (&[1, 2, 3][..], 7));
    assert!(list.capacity() <= 8, "{}", list.capacity());
}
