//! Template sources as minijinja must see them to render what Jinja renders.
//!
//! - Hugging Face's `{% generation %}` blocks mark the assistant's words in a template, for training. For rendering a
//!   block is what it encloses, in a scope of its own; that is what `{% with %}` is.
//! - Jinja reads every line end as `\n`.
//! - Jinja keeps a line end after `{% raw %}`, minijinja drops it unless told by `+`.

use std::ops::Range;

/// `source` rewritten; white-space control (`{%-`, `-%}`) stays.
pub(super) fn adapted(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    for (place, text) in edits(&source) {
        out.push_str(&source[copied..place.start]);
        out.push_str(text);
        copied = place.end;
    }
    out.push_str(&source[copied..]);
    out
}

/// What to replace by what, in order. Comments, raw blocks and strings are left alone.
fn edits(source: &str) -> Vec<(Range<usize>, &'static str)> {
    let mut edits = Vec::new();
    let mut at = 0;
    while let Some(open) = source[at..].find('{').map(|i| at + i) {
        let rest = &source[open..];
        if rest.starts_with("{#") {
            at = after(source, open + 2, "#}");
        } else if rest.starts_with("{{") {
            at = end_of_code(source, open + 2, "}}");
        } else if rest.starts_with("{%") {
            let end = end_of_code(source, open + 2, "%}");
            let name = tag_name(source, open + 2);
            at = end;
            match &source[name.clone()] {
                "generation" => edits.push((name, "with")),
                "endgeneration" => edits.push((name, "endwith")),
                "raw" => {
                    if source[name.end..end].trim() == "%}" {
                        edits.push((end - 2..end - 2, "+"));
                    }
                    at = end_of_raw(source, end);
                }
                _ => {}
            }
        } else {
            at = open + 1;
        }
    }
    edits
}

/// The name of the tag whose code starts at `from`.
fn tag_name(source: &str, from: usize) -> Range<usize> {
    let code = source[from..].trim_start_matches(['-', '+']).trim_start();
    let start = source.len() - code.len();
    let len = code
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(code.len());
    start..start + len
}

/// The position after the next `end`, or the end of the source.
fn after(source: &str, from: usize, end: &str) -> usize {
    source[from..]
        .find(end)
        .map_or(source.len(), |i| from + i + end.len())
}

/// The position after `end`, skipping strings.
fn end_of_code(source: &str, from: usize, end: &str) -> usize {
    let bytes = source.as_bytes();
    let mut quote = None;
    let mut at = from;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(q), c) if q == c => quote = None,
            (None, c @ (b'"' | b'\'')) => quote = Some(c),
            (None, _) if bytes[at..].starts_with(end.as_bytes()) => return at + end.len(),
            _ => {}
        }
        at += 1;
    }
    source.len()
}

/// The position after the `endraw` tag.
fn end_of_raw(source: &str, from: usize) -> usize {
    let mut at = from;
    while let Some(open) = source[at..].find("{%").map(|i| at + i) {
        at = after(source, open, "%}");
        if &source[tag_name(source, open + 2)] == "endraw" {
            return at;
        }
    }
    source.len()
}

#[cfg(test)]
mod tests {
    use super::adapted;

    #[test]
    fn tags_are_rewritten_with_their_white_space_control() {
        let source = "{%- generation -%}a{% endgeneration %}{%+generation+%}b{%-endgeneration-%}";
        let expected = "{%- with -%}a{% endwith %}{%+with+%}b{%-endwith-%}";
        assert_eq!(adapted(source), expected);
    }

    #[test]
    fn text_strings_comments_and_raw_blocks_are_left_alone() {
        for source in [
            "generation {generation} { % generation % }",
            "{{ '{% generation %}' }}{% if x == \"{% generation %}\" %}\\'{% endif %}",
            "{# {% generation %} #}{% raw -%}{% generation %}{% endgeneration %}{%- endraw %}",
            "{% set add_generation_prompt = generation %}",
            "{% generation",
            "é{",
        ] {
            assert_eq!(
                adapted(source),
                source.replace(
                    "{% generation",
                    match source {
                        "{% generation" => "{% with",
                        _ => "{% generation",
                    }
                )
            );
        }
    }

    #[test]
    fn line_ends_are_one_character_and_stay_after_raw() {
        assert_eq!(
            adapted("a\r\nb\rc{% raw %}\n{{ x }}{% endraw %}"),
            "a\nb\nc{% raw +%}\n{{ x }}{% endraw %}"
        );
    }
}
