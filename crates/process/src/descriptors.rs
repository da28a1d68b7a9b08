//! Descriptors of this process.

/// Has every descriptor but standard input, output and error close when another program is executed (`close_range(2)`). It
/// may be called between fork and exec. Before Linux 5.11 it does nothing.
pub fn close_others_on_exec() {
    // SAFETY: a system call on numbers. By its number, as glibc has the function only from 2.34 on.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    #[test]
    fn a_program_gets_no_descriptor_that_it_was_not_given() {
        let file = tempfile::tempfile().unwrap();
        let number = file.as_raw_fd();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let mut look = Command::new("test");
        look.arg("-e").arg(format!("/proc/self/fd/{number}"));
        assert!(look.status().unwrap().success(), "without it the descriptor is handed on");
        // SAFETY: it is a system call alone.
        unsafe {
            look.pre_exec(|| {
                super::close_others_on_exec();
                Ok(())
            });
        }
        assert!(!look.status().unwrap().success());
    }
}
