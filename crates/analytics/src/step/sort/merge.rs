//! Merges runs with a tree of losers (Knuth, "The Art of Computer Programming", volume 3, 5.4.1).

use std::path::PathBuf;

use crate::dataset::{Reader, Writer};
use crate::error::Result;
use crate::key::KeyCodec;
use crate::step::Progress;

/// Rows between two calls of the progress callback.
const PROGRESS_ROWS: u64 = 4096;

/// One run and the key of its first row that is not yet merged.
struct Head {
    reader: Reader,
    key: Vec<u8>,
    ended: bool,
}

impl Head {
    fn advance(&mut self, codec: &KeyCodec) -> Result<()> {
        if self.reader.advance()? {
            codec.encode(self.reader.current(), &mut self.key);
        } else {
            self.ended = true;
        }
        Ok(())
    }
}

/// Several runs, merged row by row in the memory of a page of each.
pub(super) struct Merge<'a> {
    codec: &'a KeyCodec,
    heads: Vec<Head>,
    /// `tree[0]` is the run whose row comes next; `tree[n]` the one that lost at node `n`, whose
    /// parent is `n / 2`. Run `i` enters at node `(i + runs) / 2`.
    tree: Vec<usize>,
}

/// Stands in the tree before any run is in it, and beats all of them.
const NOBODY: usize = usize::MAX;

impl<'a> Merge<'a> {
    /// Opens runs, which are in the order of their rows in the input.
    pub fn open(paths: &[PathBuf], codec: &'a KeyCodec) -> Result<Merge<'a>> {
        let heads = paths
            .iter()
            .map(|path| {
                let key = vec![0; codec.key_bytes()];
                let mut head = Head { reader: Reader::open(path)?, key, ended: false };
                head.advance(codec)?;
                Ok(head)
            })
            .collect::<Result<Vec<_>>>()?;
        let tree = vec![NOBODY; heads.len()];
        let mut merge = Merge { codec, heads, tree };
        for run in 0..merge.heads.len() {
            merge.replay(run);
        }
        Ok(merge)
    }

    /// Whether run `a` goes before run `b`: the smaller key, at equal keys the earlier run.
    fn before(&self, a: usize, b: usize) -> bool {
        if a == NOBODY || b == NOBODY {
            return a == NOBODY;
        }
        let (head_a, head_b) = (&self.heads[a], &self.heads[b]);
        match (head_a.ended, head_b.ended) {
            (false, false) => (&head_a.key, a) < (&head_b.key, b),
            (ended_a, _) => !ended_a,
        }
    }

    /// Plays run `run`, whose head is new, up to the root.
    fn replay(&mut self, run: usize) {
        let mut winner = run;
        let mut node = usize::midpoint(run, self.heads.len());
        while node > 0 {
            let loser = self.tree[node];
            if self.before(loser, winner) {
                self.tree[node] = winner;
                winner = loser;
            }
            node /= 2;
        }
        self.tree[0] = winner;
    }

    /// Writes all rows in order.
    pub fn write(
        &mut self,
        writer: &mut Writer,
        done: &mut u64,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        loop {
            let first = self.tree[0];
            let head = &mut self.heads[first];
            if head.ended {
                return Ok(());
            }
            writer.push(head.reader.current())?;
            head.advance(self.codec)?;
            self.replay(first);
            *done += 1;
            if done.is_multiple_of(PROGRESS_ROWS) {
                progress(*done);
            }
        }
    }
}
