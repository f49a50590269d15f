//! Rows of the batch: which are free, and which still belong to a step in flight.
//!
//! A step in flight reads the block-table rows it was planned with. The row of a sequence that left is therefore given
//! to another only when the last step planned with it has completed; until then it drains. (Blocks need no such wait:
//! steps run in order, so a stray write of a step in flight lands before a later step's owner writes.)

/// A row that is free, or free from `last_step` on.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct FreeRow {
    last_step: u64,
    row: u32,
    reserved: u32,
}

/// How many rows are free and how many drain.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RowCounts {
    pub(crate) num_free: u32,
    pub(crate) num_draining: u32,
}

/// With `n` rows there are `2 n` entries: the first half is a stack of free rows, the second a list of draining ones.
#[derive(Debug)]
pub(crate) struct Rows<'a> {
    pub(crate) entries: &'a mut [FreeRow],
    pub(crate) counts: &'a mut RowCounts,
}

impl Rows<'_> {
    /// All rows free, row 0 first.
    pub(crate) fn init(&mut self) {
        let num_rows = self.num_rows();
        for idx in 0..num_rows {
            self.entries[idx] = FreeRow {
                row: (num_rows - 1 - idx) as u32,
                ..FreeRow::default()
            };
        }
        *self.counts = RowCounts {
            num_free: num_rows as u32,
            num_draining: 0,
        };
    }

    #[inline]
    fn num_rows(&self) -> usize {
        self.entries.len() / 2
    }

    /// The row that [`Rows::take`] takes.
    #[inline]
    pub(crate) fn peek(&self) -> Option<u32> {
        match self.counts.num_free {
            0 => None,
            num_free => Some(self.entries[num_free as usize - 1].row),
        }
    }

    #[inline]
    pub(crate) fn take(&mut self) {
        self.counts.num_free -= 1;
    }

    /// Gives back a row that steps up to `last_step` may read.
    pub(crate) fn release(&mut self, row: u32, last_step: u64, completed_step: u64) {
        let entry = FreeRow {
            last_step,
            row,
            reserved: 0,
        };
        if last_step <= completed_step {
            self.entries[self.counts.num_free as usize] = entry;
            self.counts.num_free += 1;
        } else {
            self.entries[self.num_rows() + self.counts.num_draining as usize] = entry;
            self.counts.num_draining += 1;
        }
    }

    /// Frees the rows that drained up to `completed_step`.
    pub(crate) fn drain(&mut self, completed_step: u64) {
        let first = self.num_rows();
        let num_draining = self.counts.num_draining as usize;
        self.counts.num_draining = 0;
        for idx in first..first + num_draining {
            let FreeRow { last_step, row, .. } = self.entries[idx];
            self.release(row, last_step, completed_step);
        }
    }
}
