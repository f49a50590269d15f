//! The `traceparent` header (W3C Trace Context, version 00).

use axum::http::HeaderMap;

/// The caller's span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    /// The trace that both belong to.
    pub trace_id: u128,
    /// The caller's span.
    pub span_id: u64,
    /// Whether the caller records the trace.
    pub sampled: bool,
}

impl Parent {
    /// The caller's span, where the header is there and well formed.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let value = headers.get("traceparent")?.to_str().ok()?;
        let mut parts = value.split('-');
        let (version, trace, span, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |part: &str, len: usize| {
            part.len() == len
                && part
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        // Later versions may have more parts; version 00 has these four, and ff is none.
        let is_known =
            is_hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
        if !(is_known && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2)) {
            return None;
        }
        let parent = Self {
            trace_id: u128::from_str_radix(trace, 16).ok()?,
            span_id: u64::from_str_radix(span, 16).ok()?,
            sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1,
        };
        (parent.trace_id != 0 && parent.span_id != 0).then_some(parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(value: &str) -> Option<Parent> {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", value.parse().expect("a header"));
        Parent::of(&headers)
    }

    #[test]
    fn well_formed_parent_is_taken_over_and_others_are_not() {
        let ids = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
        assert_eq!(
            parsed(&format!("00-{ids}-01")),
            Some(Parent {
                trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
                span_id: 0x00f0_67aa_0ba9_02b7,
                sampled: true
            })
        );
        assert!(!parsed(&format!("00-{ids}-00")).expect("a parent").sampled);
        assert!(parsed(&format!("01-{ids}-01-more")).is_some());
        for wrong in [
            format!("00-{ids}-01-more"),
            format!("ff-{ids}-01"),
            format!("00-{ids}"),
            format!("00-{}-01", ids.to_uppercase()),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01".to_owned(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01".to_owned(),
            String::new(),
        ] {
            assert_eq!(parsed(&wrong), None, "{wrong}");
        }
    }
}
