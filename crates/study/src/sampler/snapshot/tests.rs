use super::*;

const STAT: &str = "cpu  1000 10 200 5000 300 7 3 40 900 1\ncpu0 500 5 100 2500 150 3 1 20 0 0\n\
                    intr 12345\nctxt 99\n";
const DISKS: &str = "\
   7       0 loop0 100 5 800 40 50 6 400 20 0 30 60 0 0 0 0 3 2
 254       0 vda 1000 20 16000 500 2000 30 32000 900 1 700 1400 9 8 7 6 5 4
 254       1 vda1 900 20 15000 400 1900 30 31000 800 1 600 1200 9 8 7 6 5 4
   8       0 sda 10 0 80 4 20 0 160 8 0 9 12
   8       1 sda1 10 80 20 160
";

fn at(seconds: f64) -> Snapshot {
    Snapshot { at_seconds: seconds, ..Snapshot::default() }
}

fn with_device(seconds: f64, device: Device) -> Snapshot {
    Snapshot { devices: BTreeMap::from([("vda".to_owned(), device)]), ..at(seconds) }
}

fn sample(before: &Snapshot, after: &Snapshot) -> Sample {
    after.since(before, Traffic::default(), JobCounts::default())
}

#[test]
fn processor_time_is_sorted_into_five_parts_and_guests_count_once() {
    let processor = Processor::parse(STAT).unwrap();
    let expected = Processor { user: 1010, system: 210, idle: 5000, io_wait: 300, steal: 40 };
    assert_eq!(processor, expected);
}

#[test]
fn old_kernels_count_fewer_kinds_of_processor_time() {
    let expected = Processor { user: 3, system: 3, idle: 4, io_wait: 0, steal: 0 };
    assert_eq!(Processor::parse("cpu  1 2 3 4\n"), Some(expected));
    assert_eq!(Processor::parse("cpu  1 2 3\n"), None);
    assert_eq!(Processor::parse("cpu0 1 2 3 4\n"), None);
}

#[test]
fn only_watched_devices_are_counted_and_short_lines_are_none() {
    let devices = Device::parse_all(DISKS, |name| name != "loop0" && name != "vda1");
    assert_eq!(devices.keys().collect::<Vec<_>>(), ["sda", "vda"]);
    let vda = devices["vda"];
    assert_eq!((vda.reads, vda.read_bytes, vda.read_milliseconds), (1000, 16000 * 512, 500));
    assert_eq!((vda.writes, vda.written_bytes, vda.write_milliseconds), (2000, 32000 * 512, 900));
    assert_eq!(vda.busy_milliseconds, 700);
    assert_eq!(devices["sda"].busy_milliseconds, 9);
}

#[test]
fn memory_is_read_in_kib_and_what_is_missing_is_zero() {
    let text = "MemTotal: 100 kB\nMemAvailable:   60 kB\nCached:  30 kB\nSwapCached: 5 kB\n\
                Dirty:     2 kB\nWriteback: 1 kB\nWritebackTmp: 9 kB\n";
    let memory = Memory::parse(text);
    assert_eq!((memory.available_bytes, memory.cached_bytes), (60 << 10, 30 << 10));
    assert_eq!((memory.dirty_bytes, memory.writeback_bytes), (2 << 10, 1 << 10));
    assert_eq!(Memory::parse("nonsense"), Memory::default());
}

#[test]
fn pressure_may_lack_its_second_line() {
    let some = "some avg10=0.00 avg60=1.00 avg300=0.50 total=4000000\n";
    assert_eq!(Pressure::parse(some), Some(Pressure { some: 4_000_000, full: None }));
    let both = format!("{some}full avg10=0.00 avg60=0.00 avg300=0.00 total=25\n");
    assert_eq!(Pressure::parse(&both), Some(Pressure { some: 4_000_000, full: Some(25) }));
    assert_eq!(Pressure::parse(""), None);
}

#[test]
fn parts_are_of_the_interval_as_long_as_it_was() {
    // A tick that came half a second late: 1.5 s on two processors at 100 ticks a second.
    let busy = Device { busy_milliseconds: 750, reads: 3, ..Device::default() };
    let before = Snapshot {
        processor: Some(Processor { user: 100, ..Processor::default() }),
        pressure: Some(Pressure { some: 1_000_000, full: None }),
        ..with_device(10.0, Device::default())
    };
    let after = Snapshot {
        processor: Some(Processor { user: 175, system: 75, idle: 75, io_wait: 45, steal: 30 }),
        pressure: Some(Pressure { some: 1_300_000, full: None }),
        ..with_device(11.5, busy)
    };
    let sample = sample(&before, &after);
    assert!((sample.seconds - 1.5).abs() < 1e-9);
    assert!((sample.at_seconds - 11.5).abs() < 1e-9);
    let parts = [
        (sample.cpu_user, 0.25),
        (sample.cpu_system, 0.25),
        (sample.cpu_idle, 0.25),
        (sample.cpu_io_wait, 0.15),
        (sample.cpu_steal, 0.1),
        (sample.device_busy, 0.5),
        (sample.pressure_io_some.unwrap(), 0.2),
    ];
    for (part, expected) in parts {
        assert!((part - expected).abs() < 1e-9, "{part} where {expected} is right");
    }
    assert_eq!(sample.pressure_io_full, None);
    assert_eq!(sample.device_reads, 3);
}

#[test]
fn a_waiting_time_that_goes_back_is_no_time() {
    let of = |io_wait, idle| Processor { io_wait, idle, ..Processor::default() };
    let before = Snapshot { processor: Some(of(50, 100)), ..at(0.0) };
    let after = Snapshot { processor: Some(of(40, 200)), ..at(1.0) };
    let sample = sample(&before, &after);
    assert!((sample.cpu_idle - 1.0).abs() < 1e-9 && sample.cpu_io_wait == 0.0);
}

#[test]
fn times_of_32_bits_wrap_and_counters_that_start_again_count_from_zero() {
    let wrap = u64::from(u32::MAX) - 99;
    let before = Device {
        reads: 1000,
        read_bytes: 4096,
        read_milliseconds: wrap,
        busy_milliseconds: 500,
        ..Device::default()
    };
    let after = Device {
        reads: 7,
        read_bytes: 512,
        read_milliseconds: 300,
        busy_milliseconds: 20,
        ..Device::default()
    };
    let sample = sample(&with_device(0.0, before), &with_device(1.0, after));
    assert_eq!((sample.device_reads, sample.device_read_bytes), (7, 512));
    assert!((sample.device_read_seconds - 0.4).abs() < 1e-9);
    assert!((sample.device_busy - 0.02).abs() < 1e-9);
}

#[test]
fn a_device_that_appears_did_everything_in_the_interval_and_one_that_goes_nothing() {
    let device = Device { writes: 4, written_bytes: 2048, ..Device::default() };
    let appeared = sample(&at(0.0), &with_device(1.0, device));
    assert_eq!((appeared.device_writes, appeared.device_written_bytes), (4, 2048));
    let gone = sample(&with_device(0.0, device), &at(1.0));
    assert_eq!((gone.device_writes, gone.device_written_bytes), (0, 0));
}

#[test]
fn an_interval_without_length_has_no_rates() {
    let same = with_device(3.0, Device { busy_milliseconds: 5, ..Device::default() });
    let sample = sample(&same, &same);
    assert_eq!((sample.seconds, sample.device_busy, sample.cpu_user), (0.0, 0.0, 0.0));
}

#[test]
fn bytes_of_the_network_are_those_of_the_interfaces_that_count() {
    let text = |received: u64, sent: u64| {
        format!(
            "Inter-|   Receive                |  Transmit\n face |bytes packets ...|bytes packets\n    \
             lo: 900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0\n  eth0:{received} 1 0 0 0 0 0 0 {sent} 2 0 0 0 0 0 0\n"
        )
    };
    let at = |received, sent| Snapshot {
        network: Interface::parse_all(&text(received, sent), |name| name != "lo"),
        ..Snapshot::default()
    };
    let passed = sample(&at(1000, 50), &at(1700, 55));
    assert_eq!(passed.network_received_bytes, Some(700));
    assert_eq!(passed.network_sent_bytes, Some(5));
    // An interface that was made anew counts from zero.
    assert_eq!(sample(&at(1000, 50), &at(30, 60)).network_received_bytes, Some(30));
    // One that appears is counted from the next time on: how long it was there is not known.
    let none = Snapshot { network: Some(BTreeMap::new()), ..Snapshot::default() };
    assert_eq!(sample(&none, &at(1000, 50)).network_received_bytes, Some(0));
    assert_eq!(sample(&Snapshot::default(), &at(1000, 50)).network_received_bytes, None);
    assert!(Interface::parse_all("", |_| true).is_none());
    assert!(Interface::parse_all("a\nb\n eth0: 1 2\n", |_| true).is_none());
}
