//! `{% generation %}` blocks.
//!
//! Hugging Face's extension marks the assistant's words in a template, for training. For rendering a block is what it
//! encloses, in a scope of its own; that is what `{% with %}` is, so the tags are rewritten to it.

use std::ops::Range;

/// `source` with `generation` tags rewritten to `with` tags; white-space control (`{%-`, `-%}`) stays.
pub(super) fn replace_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    for name in generation_tags(source) {
        out.push_str(&source[copied..name.start]);
        out.push_str(if &source[name.clone()] == "generation" {
            "with"
        } else {
            "endwith"
        });
        copied = name.end;
    }
    out.push_str(&source[copied..]);
    out
}

/// Where `generation` and `endgeneration` stand as the names of tags: not in comments, raw blocks or strings.
fn generation_tags(source: &str) -> Vec<Range<usize>> {
    let mut tags = Vec::new();
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
                "generation" | "endgeneration" => tags.push(name),
                "raw" => at = end_of_raw(source, end),
                _ => {}
            }
        } else {
            at = open + 1;
        }
    }
    tags
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
    use super::replace_generation_blocks;

    #[test]
    fn tags_are_rewritten_with_their_white_space_control() {
        let source = "{%- generation -%}a{% endgeneration %}{%+generation+%}b{%-endgeneration-%}";
        let expected = "{%- with -%}a{% endwith %}{%+with+%}b{%-endwith-%}";
        assert_eq!(replace_generation_blocks(source), expected);
    }

    #[test]
    fn text_strings_comments_and_raw_blocks_are_left_alone() {
        for source in [
            "generation {generation} { % generation % }",
            "{{ '{% generation %}' }}{% if x == \"{% generation %}\" %}\\'{% endif %}",
            "{# {% generation %} #}{% raw %}{% generation %}{% endgeneration %}{%- endraw %}",
            "{% set add_generation_prompt = generation %}",
            "{% generation",
            "é{",
        ] {
            assert_eq!(
                replace_generation_blocks(source),
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
}
