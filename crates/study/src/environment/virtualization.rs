//! Whether this is a virtual machine, and of which kind: from the processor, the firmware's tables and
//! the hypervisor's own files, in the names of systemd-detect-virt(1).

use crate::environment::Kernel;

/// Beginnings of the firmware's names of vendors and products.
const FIRMWARE: [(&str, &str); 17] = [
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("KubeVirt", "kvm"),
    ("Amazon EC2", "amazon"),
    ("QEMU", "qemu"),
    ("VMware", "vmware"),
    ("VMW", "vmware"),
    ("innotek GmbH", "oracle"),
    ("VirtualBox", "oracle"),
    ("Oracle Corporation", "oracle"),
    ("Xen", "xen"),
    ("Bochs", "bochs"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Hyper-V", "microsoft"),
    ("Apple Virtualization", "apple"),
    ("Google Compute Engine", "google"),
];
/// What hypervisors answer to leaf 0x4000_0000 of the cpuid instruction.
const PROCESSOR: [(&str, &str); 10] = [
    ("XenVMMXenVMM", "xen"),
    ("KVMKVMKVM", "kvm"),
    ("Linux KVM Hv", "kvm"),
    ("TCGTCGTCGTCG", "qemu"),
    ("VMwareVMware", "vmware"),
    ("Microsoft Hv", "microsoft"),
    ("bhyve bhyve ", "bhyve"),
    ("QNXQVMBSQG", "qnx"),
    ("ACRNACRNACRN", "acrn"),
    ("SRESRESRESRE", "sre"),
];

/// The kind of virtual machine; `none` of a machine of its own, `None` if that cannot be told.
pub fn detect(kernel: &Kernel) -> Option<String> {
    let hypervisor = hypervisor(kernel);
    if hypervisor == Some(false) {
        return Some("none".to_owned());
    }
    let kind = by_firmware(kernel).or_else(|| by_processor(&vendor())).map(str::to_owned);
    kind.or_else(|| kernel.sys("hypervisor/type"))
        .or_else(|| {
            kernel.proc("device-tree/hypervisor/compatible").map(|text| of_device_tree(&text))
        })
        .or_else(|| hypervisor.map(|_| "vm-other".to_owned()))
}

/// Whether the processor says that a hypervisor is there; only that of x86 says.
fn hypervisor(kernel: &Kernel) -> Option<bool> {
    let text = kernel.proc("cpuinfo")?;
    let flags = text.lines().find(|line| line.starts_with("flags"))?;
    Some(flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

fn by_firmware(kernel: &Kernel) -> Option<&'static str> {
    ["product_name", "sys_vendor", "board_vendor", "bios_vendor", "product_version"]
        .iter()
        .filter_map(|name| kernel.sys(&format!("class/dmi/id/{name}")))
        .find_map(|name| FIRMWARE.iter().find(|(start, _)| name.starts_with(start)))
        .map(|&(_, kind)| kind)
}

fn by_processor(vendor: &str) -> Option<&'static str> {
    PROCESSOR.iter().find(|(name, _)| vendor.starts_with(name)).map(|&(_, kind)| kind)
}

fn of_device_tree(compatible: &str) -> String {
    match compatible.trim_end_matches('\0') {
        "linux,kvm" => "kvm".to_owned(),
        text if text.contains("xen") => "xen".to_owned(),
        text if text.contains("vmware") => "vmware".to_owned(),
        _ => "vm-other".to_owned(),
    }
}

/// The hypervisor's name as the processor tells it; meaningless if there is none.
#[cfg(target_arch = "x86_64")]
fn vendor() -> String {
    let leaf = std::arch::x86_64::__cpuid(0x4000_0000);
    let bytes: Vec<u8> =
        [leaf.ebx, leaf.ecx, leaf.edx].iter().flat_map(|word| word.to_le_bytes()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Other processors have no such instruction.
#[cfg(not(target_arch = "x86_64"))]
fn vendor() -> String {
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn kernel(flags: &str, product: &str, vendor: &str) -> (tempfile::TempDir, Kernel) {
        let folder = tempfile::tempdir().unwrap();
        let kernel = Kernel { proc: folder.path().join("proc"), sys: folder.path().join("sys") };
        let firmware = kernel.sys.join("class/dmi/id");
        fs::create_dir_all(&kernel.proc).unwrap();
        fs::create_dir_all(&firmware).unwrap();
        fs::write(kernel.proc.join("cpuinfo"), format!("processor\t: 0\n{flags}\n")).unwrap();
        fs::write(firmware.join("product_name"), product).unwrap();
        fs::write(firmware.join("sys_vendor"), vendor).unwrap();
        (folder, kernel)
    }

    #[test]
    fn a_processor_without_a_hypervisor_is_a_machine_of_its_own() {
        let (_folder, kernel) = kernel("flags\t\t: fpu sse2", "m5.metal", "Amazon EC2");
        assert_eq!(detect(&kernel).as_deref(), Some("none"));
    }

    #[test]
    fn the_firmware_names_the_kind() {
        let flags = "flags\t\t: fpu hypervisor sse2";
        let (_folder, cloud) = kernel(flags, "m5.large", "Amazon EC2");
        assert_eq!(detect(&cloud).as_deref(), Some("amazon"));
        let (_folder, desktop) = kernel(flags, "VirtualBox", "innotek GmbH");
        assert_eq!(detect(&desktop).as_deref(), Some("oracle"));
    }

    #[test]
    fn a_machine_that_says_nothing_is_not_known() {
        let (_folder, kernel) = kernel("Features\t: fp asimd", "Server", "Vendor");
        if by_processor(&vendor()).is_none() {
            assert_eq!(detect(&kernel), None);
        }
    }

    #[test]
    fn hypervisors_are_known_by_their_names() {
        assert_eq!(by_processor("KVMKVMKVM\0\0\0"), Some("kvm"));
        assert_eq!(by_processor("Microsoft Hv"), Some("microsoft"));
        assert_eq!(by_processor("GenuineIntel"), None);
        assert_eq!(of_device_tree("linux,kvm\0"), "kvm");
    }
}
