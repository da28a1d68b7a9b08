//! CSV files as they come: plain, gzip (`.gz`) or zip (`.zip`).

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use crate::error::{Error, Result};

/// Hands the uncompressed bytes of the file at `path` to `read`, as a stream. The name's ending tells
/// how it is compressed; of a zip archive the first member whose name ends in `.csv` is taken.
///
/// # Errors
/// [`Error::Io`] if the file cannot be opened or is no such archive, and whatever `read` returns.
pub fn with_bytes<T>(path: &Path, read: impl FnOnce(&mut dyn Read) -> Result<T>) -> Result<T> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let mut buffered = BufReader::with_capacity(256 << 10, file);
    let bad = |reason: String| {
        Error::io("read", path)(io::Error::new(io::ErrorKind::InvalidData, reason))
    };
    match ending {
        "gz" => read(&mut flate2::bufread::MultiGzDecoder::new(buffered)),
        "zip" => {
            let mut archive =
                zip::ZipArchive::new(buffered).map_err(|error| bad(error.to_string()))?;
            let position = archive
                .file_names_raw()
                .position(|name| name.ends_with(b".csv"))
                .ok_or_else(|| bad("no .csv file in the archive".to_owned()))?;
            let mut member = archive.by_index(position).map_err(|error| bad(error.to_string()))?;
            read(&mut member)
        }
        _ => read(&mut buffered),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn contents(path: &Path) -> Result<String> {
        with_bytes(path, |bytes| {
            let mut text = String::new();
            bytes.read_to_string(&mut text).map_err(Error::io("read", path))?;
            Ok(text)
        })
    }

    #[test]
    fn compressed_files_read_as_plain_ones() {
        let directory = tempfile::tempdir().unwrap();
        let [plain, gzip, zipped] =
            ["a.csv", "a.csv.gz", "a.csv.zip"].map(|name| directory.path().join(name));
        std::fs::write(&plain, "a,b\n").unwrap();
        let mut encoder =
            flate2::write::GzEncoder::new(File::create(&gzip).unwrap(), Default::default());
        encoder.write_all(b"a,b\n").unwrap();
        encoder.finish().unwrap();
        let mut archive = zip::ZipWriter::new(File::create(&zipped).unwrap());
        for (name, text) in [("readme", "no"), ("a.csv", "a,b\n")] {
            archive.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
            archive.write_all(text.as_bytes()).unwrap();
        }
        archive.finish().unwrap();
        for path in [plain, gzip, zipped] {
            assert_eq!(contents(&path).unwrap(), "a,b\n", "{}", path.display());
        }
    }

    #[test]
    fn a_broken_archive_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a.zip", "a.gz"] {
            let path = directory.path().join(name);
            std::fs::write(&path, "no archive at all").unwrap();
            assert!(matches!(contents(&path), Err(Error::Io { .. })), "{name}");
        }
    }
}
