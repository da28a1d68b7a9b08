use super::*;

/// A `struct taskstats` of a version whose 64-bit word `n` is `n` seconds in nanoseconds.
fn taskstats(version: u16, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in 0..length / 8 {
        bytes.extend((word as u64 * 1_000_000_000).to_ne_bytes());
    }
    bytes[..2].copy_from_slice(&version.to_ne_bytes());
    bytes
}

#[test]
fn each_version_of_taskstats_has_its_places() {
    // offsetof() with the headers of version 13 gives 24, 40, 56, 320 and 336 bytes.
    let delays = Delays::of_taskstats(&taskstats(13, 416)).unwrap();
    assert_eq!(delays.processor_seconds, Some(3.0));
    assert_eq!(delays.io_seconds, Some(5.0));
    assert_eq!(delays.memory_seconds, Some(7.0 + 40.0 + 42.0));
    assert_eq!(Delays::of_taskstats(&taskstats(16, 560)), Some(delays));
    // Version 15 has two more words behind each sum.
    let wider = Delays::of_taskstats(&taskstats(15, 560)).unwrap();
    assert_eq!((wider.processor_seconds, wider.io_seconds), (Some(3.0), Some(7.0)));
    assert_eq!(wider.memory_seconds, Some(11.0 + 46.0 + 50.0));
}

#[test]
fn taskstats_that_are_old_or_cut_are_none() {
    assert_eq!(Delays::of_taskstats(&taskstats(8, 328)), None);
    assert_eq!(Delays::of_taskstats(&taskstats(13, 320)), None);
    assert_eq!(Delays::of_taskstats(&[]), None);
}

#[test]
fn a_request_is_laid_out_as_the_kernel_reads_it() {
    let message = request(28, 7, GET, 1, &42_u32.to_ne_bytes());
    assert_eq!(message.len(), 28);
    assert_eq!(message[..4], 28_u32.to_ne_bytes());
    assert_eq!(message[8..12], 7_u32.to_ne_bytes());
    assert_eq!(attribute(&message[HEADERS..], 1), Some(&42_u32.to_ne_bytes()[..]));
    let named = request(CONTROL, 1, GET_FAMILY, FAMILY_NAME, b"TASKSTATS\0");
    assert_eq!(named.len(), HEADERS + 16);
    assert_eq!(attribute(&named[HEADERS..], FAMILY_NAME), Some(&b"TASKSTATS\0"[..]));
}

#[test]
fn an_answer_is_taken_apart_and_one_to_another_question_is_passed_over() {
    let message = request(28, 7, GET, 9, &[1, 2, 3]);
    assert_eq!(answer(&message, 8).unwrap(), None);
    let attributes = answer(&message, 7).unwrap().unwrap();
    assert_eq!(attribute(attributes, 9), Some(&[1, 2, 3][..]));
    assert_eq!(attribute(attributes, 1), None);
    assert!(answer(&message[..10], 7).is_err());
    assert!(answer(&message[..24], 7).is_err());
}

#[test]
fn a_refusal_is_the_kernels_error() {
    let mut message = request(ERROR, 7, 0, 0, &[]);
    message[16..20].copy_from_slice(&(-1_i32).to_ne_bytes());
    let error = answer(&message, 7).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
}

#[test]
fn damaged_attributes_are_none() {
    assert_eq!(attribute(&[200, 0, 1, 0], 1), None);
    assert_eq!(attribute(&[0, 0, 1, 0], 1), None);
    assert_eq!(attribute(&[1, 0], 1), None);
}

#[test]
fn of_stat_only_waiting_for_block_devices_is_known() {
    let own = Stat::own().unwrap();
    let second = Some(rustix::param::clock_ticks_per_second());
    let delays = Delays::of_stat(&Stat { block_wait_ticks: second, ..own }).unwrap();
    assert!((delays.io_seconds.unwrap() - 1.0).abs() < 1e-9);
    assert_eq!((delays.memory_seconds, delays.processor_seconds), (None, None));
    assert_eq!(Delays::of_stat(&Stat { block_wait_ticks: None, ..own }), None);
}

#[test]
fn a_wait_that_is_counted_from_the_boot_is_left_out() {
    // As seen: 0.293 s of a machine that had run for 15243 s.
    let of = |io| Delays { io_seconds: Some(io), ..Delays::default() };
    let left = |io, real, uptime| of(io).without_miscounts(real, uptime).io_seconds;
    assert_eq!(left(15243.13, 0.293, 15243.4), None);
    assert_eq!(left(0.257, 0.301, 15243.4), Some(0.257));
    // Four threads that wait all the time.
    assert_eq!(left(39.0, 10.0, 15243.4), Some(39.0));
    // Of a machine that was started for this, a figure that could be is kept.
    assert_eq!(left(50.0, 60.0, 70.0), Some(50.0));
}

#[test]
fn accounting_that_is_off_is_said_with_its_remedy() {
    assert!(
        reason_off(Some("0\n"), "6.1.0", "").unwrap().contains("sysctl kernel.task_delayacct=1")
    );
    assert_eq!(reason_off(Some("1\n"), "6.1.0", ""), None);
    assert!(reason_off(None, "5.14.2-1-amd64", "").unwrap().contains("CONFIG_TASK_DELAY_ACCT"));
    assert_eq!(reason_off(None, "4.18.0-553.el8", "quiet"), None);
    assert!(reason_off(None, "5.4.0", "quiet nodelayacct").unwrap().contains("nodelayacct"));
    assert!(Source::None("why".to_owned()).describe().contains("why"));
}

#[test]
fn a_source_that_is_found_answers_about_this_process() {
    let mut source = Source::find();
    let delays = source.of(rustix::process::getpid());
    match source {
        Source::None(_) => assert_eq!(delays, None),
        Source::Taskstats(_) | Source::Stat(_) => assert!(delays.unwrap().io_seconds.is_some()),
    }
}

#[test]
fn the_kernel_answers_a_request_or_says_why_not() {
    // Whether delays are accounted for does not matter here: processor delays of the kernel's
    // scheduler are told anyway or are zero.
    match Taskstats::connect() {
        Ok(mut taskstats) => {
            assert!(taskstats.of(rustix::process::getpid()).is_ok());
            let nobody = Pid::from_raw(i32::MAX).unwrap();
            assert_eq!(taskstats.of(nobody).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        }
        Err(error) => assert!(
            matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound),
            "{error}"
        ),
    }
}
