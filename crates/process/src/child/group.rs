//! Starting a process in a control group (cgroups(7), version 2).
//!
//! A process that writes itself into a group waits until all processors have passed a quiet state, which takes 7 to
//! 12 ms on an idle machine. One that is made in the group (`CLONE_INTO_CGROUP`, Linux 5.7) does not. The C library
//! has no word for that, so the system call is made here, on the processors for which that is written down; on
//! others the child enters the group by itself.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

/// Between fork and exec: this process enters the group whose folder this is. Allocates nothing.
///
/// # Errors
/// If it may not, or the group is gone.
pub fn enter(group: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(group, c"cgroup.procs", flags, Mode::empty())?;
    rustix::io::write(&file, b"0")?;
    Ok(())
}

/// Whether [`clone`] has the kernel give the child the default of all signals that are handled, which saves two calls for
/// each of them (`CLONE_CLEAR_SIGHAND`, Linux 5.5).
pub const CLEARS_HANDLERS: bool = cfg!(target_arch = "x86_64");

/// Starts a child in a group as `clone(2)` does with `CLONE_VM` and `CLONE_VFORK`: it runs `run(argument)` on `stack`.
///
/// # Errors
/// The kernel's; then there was no child.
///
/// # Safety
/// `run` and what it uses must be fit for a child that shares the memory of this process, and must not unwind; the
/// stack must be large enough for it.
#[cfg(target_arch = "x86_64")]
pub unsafe fn clone(
    stack: &mut Vec<MaybeUninit<u128>>,
    group: BorrowedFd<'_>,
    run: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> io::Result<Pid> {
    use std::os::fd::AsRawFd as _;

    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
    // SAFETY: zeros are valid: they ask for nothing.
    let mut how: libc::clone_args = unsafe { std::mem::zeroed() };
    how.flags =
        (libc::CLONE_VM | libc::CLONE_VFORK) as u64 | CLONE_INTO_CGROUP | CLONE_CLEAR_SIGHAND;
    how.exit_signal = libc::SIGCHLD as u64;
    how.stack = stack.as_mut_ptr() as u64;
    how.stack_size = (stack.capacity() * size_of::<u128>()) as u64;
    how.cgroup = group.as_raw_fd() as u64;
    let child: i64;
    // SAFETY: the child has a stack of its own, aligned to 16 bytes as calls need it, and never returns into this frame;
    // the parent stands still until the child has executed its program or ended. The kernel changes rcx and r11.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "mov edi, eax",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone3 => child,
            in("rdi") &raw const how,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") run,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    match i32::try_from(child) {
        Ok(number) if number > 0 => Ok(Pid::from_raw(number).expect("a number above zero")),
        Ok(number) => Err(io::Error::from_raw_os_error(-number)),
        Err(_) => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// What a child needs that enters its group by itself.
#[cfg(not(target_arch = "x86_64"))]
struct Entrance<'a> {
    group: BorrowedFd<'a>,
    run: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
    refused: Option<i32>,
}

/// As on processors with a system call of its own here.
///
/// # Errors
/// The kernel's; then nothing ran.
///
/// # Safety
/// As there.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn clone(
    stack: &mut Vec<MaybeUninit<u128>>,
    group: BorrowedFd<'_>,
    run: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> io::Result<Pid> {
    extern "C" fn begin(entrance: *mut c_void) -> c_int {
        // SAFETY: what `clone` gave, which does nothing before the child has gone.
        let entrance = unsafe { &mut *entrance.cast::<Entrance<'_>>() };
        match enter(entrance.group) {
            Ok(()) => (entrance.run)(entrance.argument),
            Err(error) => {
                entrance.refused = error.raw_os_error().or(Some(libc::EIO));
                127
            }
        }
    }
    let mut entrance = Entrance { group, run, argument, refused: None };
    // SAFETY: as the caller says; the parent stands still until the child has executed its program or ended.
    let child = unsafe {
        let top = stack.as_mut_ptr().add(stack.capacity()).cast();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        libc::clone(begin, top, flags, (&raw mut entrance).cast())
    };
    let error = io::Error::last_os_error();
    let child = Pid::from_raw(child).filter(|_| child > 0).ok_or(error)?;
    let Some(refused) = entrance.refused else { return Ok(child) };
    let _ = rustix::io::retry_on_intr(|| {
        rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())
    });
    Err(io::Error::from_raw_os_error(refused))
}
