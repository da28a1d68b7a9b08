//! The mixes that come with Forebay are what they say they are.

use forebay_workload::mix::{Mix, Options, Plan};

fn mix(name: &str) -> Mix {
    Mix::parse(name, Mix::built_in(name).unwrap(), &[]).unwrap()
}

fn plan(name: &str, options: &Options) -> Plan {
    mix(name).plan(options).unwrap()
}

#[test]
fn every_mix_can_be_read_and_planned_at_any_scale() {
    for name in Mix::names() {
        assert_eq!(mix(name).name, name);
        for scale in ["0.00001", "0.01", "1"] {
            let options = Options { scale: Some(scale.parse().unwrap()), ..Options::default() };
            let plan = plan(name, &options);
            assert!(plan.job_count() > 0, "{name} at {scale}");
            assert!(plan.space().total() > 0, "{name} at {scale} says what space it needs");
        }
    }
}
