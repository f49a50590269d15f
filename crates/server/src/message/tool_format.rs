//! How models write calls.

/// A model's way to write calls. All are JSON objects with a name and arguments, alone or in a list; they differ in what stands around.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// Hermes, Qwen2.5, Qwen3, QwQ: `<tool_call>{…}</tool_call>` for each call, anywhere in the text.
    Hermes,
    /// Llama 3: a text that begins with a call and is nothing else, calls divided by `;`; or `<|python_tag|>` and calls, anywhere.
    Llama3Json,
    /// Phi-4: `functools[…]`, or `<|tool_call|>[…]<|/tool_call|>`, anywhere.
    Phi4,
    /// A text that is a list of calls and nothing else: what an answer is constrained to where a call is required.
    BareList,
}

impl ToolFormat {
    /// What a chat template tells: the markup that it asks for or repeats calls in.
    pub fn detect(template: &str) -> Option<Self> {
        let has = |text: &str| template.contains(text);
        if has("<tool_call>") && !has("<function=") {
            Some(Self::Hermes)
        } else if has("<|python_tag|>") || (has("\"parameters\"") && has("ipython")) {
            Some(Self::Llama3Json)
        } else if has("functools[") || has("<|tool_call|>") || has("<|tool|>") {
            Some(Self::Phi4)
        } else {
            None
        }
    }

    /// What may stand before a call, and what then stands after it.
    pub(super) fn brackets(self) -> &'static [Bracket] {
        match self {
            Self::Hermes => &[Bracket {
                open: "<tool_call>",
                is_list: false,
                close: Some("</tool_call>"),
            }],
            Self::Llama3Json => &[Bracket {
                open: "<|python_tag|>",
                is_list: false,
                close: None,
            }],
            Self::Phi4 => &[
                Bracket {
                    open: "functools[",
                    is_list: true,
                    close: None,
                },
                Bracket {
                    open: "<|tool_call|>",
                    is_list: false,
                    close: Some("<|/tool_call|>"),
                },
            ],
            Self::BareList => &[],
        }
    }

    /// All the marks.
    pub fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &["<tool_call>", "</tool_call>"],
            Self::Llama3Json => &["<|python_tag|>"],
            Self::Phi4 => &["functools[", "<|tool_call|>", "<|/tool_call|>"],
            Self::BareList => &[],
        }
    }

    /// With what a text may begin that is a call without marks.
    pub(super) fn bare_start(self) -> Option<char> {
        match self {
            Self::Hermes | Self::Phi4 => None,
            Self::Llama3Json => Some('{'),
            Self::BareList => Some('['),
        }
    }

    /// Whether one call may follow another with no more than `;` or a comma between.
    pub(super) fn has_separators(self) -> bool {
        self == Self::Llama3Json
    }
}

/// The marks around a call or a list of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bracket {
    pub open: &'static str,
    /// Whether the opening mark ends with a list's `[`; elsewhere a list may follow it or not.
    pub is_list: bool,
    /// None where nothing is to stand there. A missing mark is forgiven.
    pub close: Option<&'static str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_tell_their_format() {
        for (template, want) in [
            (r#"<tool_call>\n{"name": ..."#, Some(ToolFormat::Hermes)),
            ("<tool_call>\n<function=", None),
            ("{{- '<|python_tag|>' }}", Some(ToolFormat::Llama3Json)),
            (
                "'<|tool|>' + message['tools'] + '<|/tool|>'",
                Some(ToolFormat::Phi4),
            ),
            ("{{ message.content }}", None),
        ] {
            assert_eq!(ToolFormat::detect(template), want, "{template}");
        }
    }
}
