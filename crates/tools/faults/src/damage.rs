//! Damage to what was written down.

use serde_json::{Number, Value};

/// Numbers at which something ends.
const LIMITS: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];
/// Of a list or a text that has grown.
const MANY: usize = 300;

/// Changes one of the values in `root`, each as likely as any other: which and how follows from
/// `random`.
pub fn value(root: &mut Value, mut random: impl FnMut() -> u64) {
    let mut left = random() % nodes(root);
    change(nth(root, &mut left).unwrap_or(&mut Value::Null), &mut random);
}

/// Changes a byte of `text`, or cuts it.
pub fn bytes(text: &mut Vec<u8>, mut random: impl FnMut() -> u64) {
    let (at, word) = ((random() as usize).checked_rem(text.len()), random());
    match at {
        None => {}
        Some(at) if word.is_multiple_of(8) => text.truncate(at),
        Some(at) => text[at] = (word >> 8) as u8,
    }
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(list) => Box::new(list.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => Box::new(std::iter::empty()),
    }
}

fn nodes(value: &Value) -> u64 {
    1 + children(value).map(nodes).sum::<u64>()
}

/// The value that so many others come before.
fn nth<'a>(value: &'a mut Value, left: &mut u64) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(list) => list.iter_mut().find_map(|value| nth(value, left)),
        Value::Object(fields) => fields.values_mut().find_map(|value| nth(value, left)),
        _ => None,
    }
}

fn change(value: &mut Value, random: &mut impl FnMut() -> u64) {
    let word = random();
    if word.is_multiple_of(31) {
        *value = Value::Null;
        return;
    }
    let place = |len: usize| (word >> 8) as usize % len.max(1);
    match value {
        Value::Null => *value = Value::from(LIMITS[place(LIMITS.len())]),
        Value::Bool(bit) => *bit = !*bit,
        Value::Number(number) => *number = other(number, word),
        Value::String(text) if word.is_multiple_of(3) => *text = "x".repeat(MANY),
        Value::String(text) => drop(text.pop()),
        Value::Array(list) => match word % 4 {
            0 => drop(list.pop()),
            1 => list.reverse(),
            2 => list.extend(list.get(place(list.len())).cloned()),
            _ => list.extend(list.first().cloned().into_iter().cycle().take(MANY)),
        },
        Value::Object(fields) => {
            let key = fields.keys().nth(place(fields.len())).cloned();
            key.and_then(|key| fields.remove(&key));
        }
    }
}

fn other(number: &Number, word: u64) -> Number {
    let here = number.as_u64().or(number.as_i64().map(|number| number as u64)).unwrap_or_default();
    match word % 8 {
        0 => here.wrapping_add(1).into(),
        1 => here.wrapping_sub(1).into(),
        2 | 3 => (here ^ 1 << (word >> 16 & 63)).into(),
        4 => (here ^ 1 << (word >> 16 & 7)).into(),
        5 => (-((word >> 8 & 0xff) as i64)).into(),
        _ => LIMITS[(word >> 16) as usize % LIMITS.len()].into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::random;

    #[test]
    fn every_value_is_reached_and_something_changes() {
        let whole = json!({ "a": [1, 2, { "b": "text" }], "c": true, "d": null });
        let damaged: Vec<_> = (0..2000)
            .map(|seed| {
                let (mut value, mut number) = (whole.clone(), 0);
                super::value(&mut value, || {
                    number += 1;
                    random(seed, number)
                });
                value
            })
            .collect();
        for pointer in ["/a", "/a/0", "/a/2", "/a/2/b", "/c"] {
            assert!(
                damaged.iter().any(|value| value.pointer(pointer) != whole.pointer(pointer)),
                "{pointer}"
            );
        }
        let same = damaged.iter().filter(|value| **value == whole).count();
        assert!(same < 300, "{same}: a list that is reversed, or grows by what is not there");
    }

    #[test]
    fn bytes_are_changed_or_cut_and_none_are_left_alone() {
        let mut text = b"hello".to_vec();
        bytes(&mut text, || 8);
        assert_eq!(text, b"hel");
        bytes(&mut text, || u64::from(b'x') << 8 | 1);
        assert_eq!(text.iter().filter(|&&byte| byte == b'x').count(), 1);
        bytes(&mut Vec::new(), || 3);
    }
}
