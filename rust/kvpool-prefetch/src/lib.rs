#![doc = include_str!("../README.md")]
#![no_std]
#![deny(unsafe_code)]

/// Starts to load the first cache line of `value`, for a later read or write. Does not wait for it.
///
/// Costs: one instruction on x86-64 and aarch64; nothing on other architectures, where the function does
/// nothing. The CPU loads a limited number of lines at the same time, about 16 in today's processors.
/// Further prefetches wait for one of these.
#[inline(always)]
#[cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(unsafe_code, reason = "the instructions take an address, and have no safe function")
)]
pub fn prefetch<T: ?Sized>(value: &T) {
    let address = core::ptr::from_ref(value).cast::<i8>();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: A prefetch reads no value and writes none, and it does not fault at any address. Every x86-64
    // CPU has SSE, to which the instruction belongs.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: As above. The instruction belongs to the base of the architecture, and changes no register.
    unsafe {
        core::arch::asm!(
            "prfm pldl1keep, [{}]",
            in(reg) address,
            options(readonly, nostack, preserves_flags)
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;

    use super::prefetch;

    #[test]
    fn a_prefetch_changes_no_value() {
        let mut table = vec![7_u64; 1000];
        table.iter().for_each(prefetch);
        table[999] = 8;
        prefetch(&table[999]);
        assert!(table[..999].iter().all(|&value| value == 7));
        assert_eq!(table[999], 8);
    }

    #[test]
    fn values_without_memory_can_be_prefetched() {
        prefetch(&());
        prefetch::<[u32]>(&[]);
        prefetch("");
    }
}
