//! SHA-256 of one short message.
//!
//! Two libraries compute it, each where it is fastest, with the same digests:
//!
//! - On processors with SHA instructions, `sha2`'s compression function is called directly. Making a
//!   digest object would cost as much as a third of hashing a block.
//! - On other processors, `ring` has the fastest vector code. The feature `sha256` adds `ring`. Without
//!   this feature, `sha2` computes everything, at 1.7 times the cost.

use super::BlockHash;

/// The initial state of SHA-256, from FIPS 180-4, section 5.3.3.
const INITIAL: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// Number of bytes in a block of SHA-256, which is hashed by one compression.
const BLOCK: usize = 64;
const LENGTH: usize = 8;

/// The largest number of bytes that the padding can take after a message.
pub(super) const PADDING: usize = BLOCK + LENGTH;
const ZEROS: [u8; PADDING] = [0; PADDING];

/// Whether the processor has SHA instructions, and `sha2` uses them.
#[inline]
fn has_sha_instructions() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    return std::arch::is_x86_feature_detected!("sha");
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
    return false;
}

#[inline]
pub(super) fn sha256(message: &[u8]) -> BlockHash {
    if !has_sha_instructions() {
        return digested(message);
    }
    let mut state = INITIAL;
    let (whole, rest) = message.as_chunks::<BLOCK>();
    if !whole.is_empty() {
        sha2::block_api::compress256(&mut state, whole);
    }
    let mut last = [0; BLOCK + PADDING];
    last[..rest.len()].copy_from_slice(rest);
    finish(state, &mut last, rest.len(), message.len())
}

/// Returns the SHA-256 of the first `len` bytes of a buffer. If the buffer has [`PADDING`] more bytes,
/// they are overwritten and the message is not copied.
#[inline]
pub(super) fn sha256_in_place(buffer: &mut [u8], len: usize) -> BlockHash {
    if has_sha_instructions() && buffer.len() >= len + PADDING {
        return finish(INITIAL, buffer, len, len);
    }
    digested(&buffer[..len])
}

/// Returns the length of a message of `len` bytes with its padding.
pub(super) const fn padded_len(len: usize) -> usize {
    (len + 1 + LENGTH).next_multiple_of(BLOCK)
}

/// Writes the padding of a message after its end, as in FIPS 180-4, section 5.1.1. The whole message
/// has `total` bytes. Its last `len` bytes are the start of the buffer, and all later bytes of the
/// buffer have to be zero.
#[inline]
pub(super) fn pad(buffer: &mut [u8], len: usize, total: usize) {
    let end = padded_len(len);
    buffer[len] = 0x80;
    buffer[end - LENGTH..end].copy_from_slice(&(total as u64 * 8).to_be_bytes());
}

/// Returns the SHA-256 of the first `len` bytes of a buffer, which already contains their padding.
#[inline]
pub(super) fn sha256_padded(buffer: &[u8], len: usize) -> BlockHash {
    if has_sha_instructions() {
        return compressed(INITIAL, buffer);
    }
    digested(&buffer[..len])
}

/// Pads and hashes the end of a message of `total` bytes. Its last `len` bytes are the start of the
/// buffer. `state` is the state after all earlier bytes.
#[inline]
fn finish(state: [u32; 8], buffer: &mut [u8], len: usize, total: usize) -> BlockHash {
    // A copy of fixed length compiles to few stores. The padding overwrites a part of these zeros.
    buffer[len..len + PADDING].copy_from_slice(&ZEROS);
    pad(buffer, len, total);
    compressed(state, &buffer[..padded_len(len)])
}

/// Hashes the last blocks of a message, which include its padding. Returns the digest of the message.
#[inline]
fn compressed(mut state: [u32; 8], blocks: &[u8]) -> BlockHash {
    sha2::block_api::compress256(&mut state, blocks.as_chunks().0);
    let mut digest = [0; 32];
    digest.copy_from_slice(state.map(u32::to_be_bytes).as_flattened());
    BlockHash::from_bytes(digest)
}

#[cfg(feature = "sha256")]
fn digested(message: &[u8]) -> BlockHash {
    let digest = ring::digest::digest(&ring::digest::SHA256, message);
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    BlockHash::from_bytes(bytes)
}

#[cfg(not(feature = "sha256"))]
fn digested(message: &[u8]) -> BlockHash {
    use sha2::Digest;
    BlockHash::from_bytes(sha2::Sha256::digest(message).into())
}

#[cfg(test)]
mod tests {
    use super::{PADDING, digested, sha256, sha256_in_place};

    /// The lengths go up to several blocks of SHA-256, so that every position of the padding occurs.
    #[test]
    fn all_sha256_implementations_agree() {
        let message: Vec<u8> = (0..1000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for len in 0..message.len() - PADDING {
            let expected = digested(&message[..len]);
            assert_eq!(sha256(&message[..len]), expected, "{len} bytes");
            assert_eq!(sha256_in_place(&mut message.clone(), len), expected, "{len} bytes");
            let mut exact = message[..len].to_vec();
            assert_eq!(sha256_in_place(&mut exact, len), expected, "{len} bytes without room");
        }
        assert!(format!("{:?}", sha256(b"abc")).starts_with("ba7816bf8f01cfea414140de5dae2223b00361a3"));
    }
}
