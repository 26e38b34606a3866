//! Pages of the program that only its start needed.

use std::ffi::{c_int, c_void};

use nix::unistd::{SysconfVar, sysconf};

/// Lets go of all pages of the program and its libraries that no process writes. They stay in the page cache, which all
/// processes of the program share; what runs again is mapped again from there.
///
/// Reading the options and preparing everything takes a program through most of its text once, while what carries
/// frames is a small part of it. What relocation has changed is left alone.
pub fn release_startup_pages() {
    let Ok(Some(page)) = sysconf(SysconfVar::PAGE_SIZE) else { return };
    let Ok(mut page) = usize::try_from(page) else { return };
    // SAFETY: the callback has the type that dl_iterate_phdr(3) asks for, does not unwind, and gets a `page` that
    // no other thread uses while it runs.
    unsafe { libc::dl_iterate_phdr(Some(release), std::ptr::from_mut(&mut page).cast()) };
}

/// The same for one of the objects that are loaded.
unsafe extern "C" fn release(object: *mut libc::dl_phdr_info, _: usize, page: *mut c_void) -> c_int {
    // SAFETY: by `release_startup_pages`; and the loader describes what is loaded, which stays so during the call.
    let (page, base, headers) = unsafe {
        let (info, page) = (&*object, *page.cast::<usize>());
        if info.dlpi_phdr.is_null() {
            return 0;
        }
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        (page, info.dlpi_addr as usize, headers)
    };
    for h in headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_W == 0) {
        // Whole pages: what shares one with the segment may be written.
        let begin = (base + h.p_vaddr as usize).next_multiple_of(page);
        let end = (base + h.p_vaddr as usize + h.p_memsz as usize) / page * page;
        if begin < end {
            // SAFETY: the range is a part of a private mapping of a file that was never writable: its pages hold what
            // the file holds, and come from there again. A failure changes nothing.
            unsafe { libc::madvise(begin as *mut c_void, end - begin, libc::MADV_DONTNEED) };
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KiB of files that are mapped and present, from /proc/self/status.
    fn resident_files() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssFile:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn pages_that_are_let_go_are_not_resident_and_come_back_when_they_are_needed() {
        let before = resident_files();
        release_startup_pages();
        let after = resident_files();
        assert!(after < before, "{after} KiB of {before}");
    }
}
