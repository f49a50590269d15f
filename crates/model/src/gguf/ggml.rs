//! ggml's numbering of element types.

use crate::Dtype;
use crate::table::Stored;

/// The type with a number in a GGUF file.
pub(super) fn stored_type(id: u32) -> Stored {
    Stored::Known(match id {
        0 => Dtype::F32,
        1 => Dtype::F16,
        2 => Dtype::Q4_0,
        3 => Dtype::Q4_1,
        6 => Dtype::Q5_0,
        7 => Dtype::Q5_1,
        8 => Dtype::Q8_0,
        12 => Dtype::Q4K,
        13 => Dtype::Q5K,
        14 => Dtype::Q6K,
        30 => Dtype::Bf16,
        other => return Stored::Other(unread_type(other)),
    })
}

/// The name of a ggml type this crate does not decode.
fn unread_type(id: u32) -> String {
    let name = match id {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        _ => return format!("ggml type {id}"),
    };
    name.into()
}
