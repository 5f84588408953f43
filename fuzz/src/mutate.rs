//! Mutated inputs, the same each time.
//!
//! An input depends on the seed, the target's name, the corpus and its own number, and on no other
//! input. So the input of a number can be made again after the process that ran it has died.

/// Bytes of a mutated input, at most. fuzz/run has the same limit.
const LONGEST: usize = 4096;
/// Mutations of one input, at most.
const MOST: usize = 6;
/// Bytes that a parser is likely to have a case for.
const BYTES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xfe, 0xff, b'"', b'\n'];

/// Random numbers: SplitMix64 of Steele, Lea and Flood, which starts well from any seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if there is none.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// FNV-1a, which no release of the compiler changes: names of finds stay the same.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The inputs of one replay of a target: its corpus, and then mutations of it.
#[derive(Debug)]
pub struct Inputs {
    corpus: Vec<Vec<u8>>,
    seed: u64,
}

impl Inputs {
    /// Those of the target `name`.
    pub fn new(name: &str, corpus: Vec<Vec<u8>>, seed: u64) -> Self {
        Self { corpus, seed: seed ^ hash(name.as_bytes()) }
    }

    /// How many of them are the corpus.
    pub fn given(&self) -> usize {
        self.corpus.len()
    }

    /// Input `index`.
    pub fn get(&self, index: usize) -> Vec<u8> {
        if let Some(given) = self.corpus.get(index) {
            return given.clone();
        }
        // The seeds of two inputs are far apart in the sequence.
        let mut random = Random(self.seed);
        random.0 = random.next() ^ (index as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mut input = self.pick(&mut random).to_vec();
        for _ in 0..=random.below(MOST) {
            self.change(&mut input, &mut random);
        }
        input.truncate(LONGEST);
        input
    }

    fn pick(&self, random: &mut Random) -> &[u8] {
        self.corpus.get(random.below(self.corpus.len())).map_or(&[], Vec::as_slice)
    }

    /// Makes one mutation.
    fn change(&self, input: &mut Vec<u8>, random: &mut Random) {
        let at = random.below(input.len());
        let end = at + random.below((input.len() - at).min(32) + 1);
        match random.below(8) {
            0 | 1 if at < input.len() => input[at] ^= 1 << random.below(8),
            2 if at < input.len() => input[at] = random.next() as u8,
            3 if at < input.len() => input[at] = BYTES[random.below(BYTES.len())],
            4 => drop(input.drain(at..end)),
            5 => {
                let again = input[at..end].to_vec();
                input.splice(at..at, again);
            }
            6 => {
                let other = self.pick(random);
                input.truncate(at);
                input.extend_from_slice(&other[random.below(other.len())..]);
            }
            _ => {
                let bytes = (0..=random.below(16)).map(|_| random.next() as u8).collect::<Vec<_>>();
                input.splice(at..at, bytes);
            }
        }
    }
}
