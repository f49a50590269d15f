//! Hand-written JSON: what a stream repeats for every token is appended to a buffer without a tree, a trait object or an allocation.

use bytes::{BufMut, BytesMut};

/// For each byte: 0 where it stands for itself inside a JSON string, else the letter of its escape (`u` for a numbered one).
const ESCAPES: [u8; 256] = {
    let mut table = [0; 256];
    let mut control = 0;
    while control < 0x20 {
        table[control] = b'u';
        control += 1;
    }
    table[0x08] = b'b';
    table[b'\t' as usize] = b't';
    table[b'\n' as usize] = b'n';
    table[0x0c] = b'f';
    table[b'\r' as usize] = b'r';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table
};

/// Appends `text` as a JSON string, quotes included.
pub fn put_string(out: &mut BytesMut, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bytes = text.as_bytes();
    out.reserve(bytes.len() + 2);
    out.put_u8(b'"');
    let mut copied = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        let escape = ESCAPES[usize::from(byte)];
        if escape == 0 {
            continue;
        }
        out.extend_from_slice(&bytes[copied..at]);
        copied = at + 1;
        out.extend_from_slice(&[b'\\', escape]);
        if escape == b'u' {
            out.extend_from_slice(&[
                b'0',
                b'0',
                HEX[usize::from(byte >> 4)],
                HEX[usize::from(byte & 15)],
            ]);
        }
    }
    out.extend_from_slice(&bytes[copied..]);
    out.put_u8(b'"');
}

/// Appends an integer.
pub fn put_uint(out: &mut BytesMut, value: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    let mut rest = value;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a log probability; JSON has no infinity, so what is not finite becomes −9999, as in vLLM.
pub fn put_logprob(out: &mut BytesMut, value: f32) {
    use std::fmt::Write;
    let value = if value.is_finite() { value } else { -9999.0 };
    // Writing to a `BytesMut` fails only where its length would overflow.
    let _ = write!(out, "{value:?}");
}

/// Appends a list, each item written by `put`.
pub fn put_list<T>(
    out: &mut BytesMut,
    items: impl IntoIterator<Item = T>,
    mut put: impl FnMut(&mut BytesMut, T),
) {
    out.put_u8(b'[');
    for (idx, item) in items.into_iter().enumerate() {
        if idx > 0 {
            out.put_u8(b',');
        }
        put(out, item);
    }
    out.put_u8(b']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(put: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        put(&mut out);
        String::from_utf8(out.to_vec()).expect("UTF-8")
    }

    #[test]
    fn control_characters_are_escaped() {
        let text = "\u{0}\u{1f}\u{8}\u{c}\n\r\t\"\\/é😀\u{7f}";
        assert_eq!(
            written(|out| put_string(out, text)),
            serde_json::to_string(text).expect("a string")
        );
    }

    #[test]
    fn numbers_are_json() {
        assert_eq!(written(|out| put_uint(out, 0)), "0");
        assert_eq!(written(|out| put_uint(out, u64::MAX)), u64::MAX.to_string());
        for value in [f32::NEG_INFINITY, f32::NAN, -0.0, -1e-10, -3.5e-38, -17.25] {
            let text = written(|out| put_logprob(out, value));
            let back: f64 = serde_json::from_str(&text).expect(&text);
            assert_eq!(back as f32, if value.is_finite() { value } else { -9999.0 });
        }
    }

    proptest! {
        #[test]
        fn strings_are_written_as_serde_json_writes_them(text in "\\PC*|[\\x00-\\x7f]*") {
            prop_assert_eq!(written(|out| put_string(out, &text)), serde_json::to_string(&text).expect("a string"));
        }
    }
}
