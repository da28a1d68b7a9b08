//! Messages omit what is not set, so that older versions understand newer ones that ask for nothing new.
//!
//! A struct of `sparse!` is written in full where the format does not name its fields (the journal, whose bytes stay as they were). As
//! JSON, in messages and orders, each field is omitted that equals that of the struct's default. What reads it takes the
//! default for it, and refuses a field that it does not know: a setting that cannot be honoured is never dropped silently.

/// Which fields are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fields {
    /// All of them.
    All,
    /// Those that differ from the default.
    Set,
}

/// Writes all fields in every format, for programs of a site that expect each.
#[derive(Debug)]
pub struct Complete<'a, T>(pub &'a T);

/// A struct of which messages omit the fields that are not set. It needs a default, for all its fields.
macro_rules! sparse {
    ($(#[$about:meta])* pub struct $name:ident {
        $($(#[$field_about:meta])* pub $field:ident: $type:ty,)*
    }) => {
        $(#[$about])*
        pub struct $name {
            $($(#[$field_about])* pub $field: $type,)*
        }

        impl $name {
            fn write<S: serde::Serializer>(
                &self,
                serializer: S,
                fields: $crate::sparse::Fields,
            ) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct as _;
                let default = $name::default();
                let all = fields == $crate::sparse::Fields::All;
                let count = 0 $(+ usize::from(all || self.$field != default.$field))*;
                let mut written = serializer.serialize_struct(stringify!($name), count)?;
                $(
                    if all || self.$field != default.$field {
                        written.serialize_field(stringify!($field), &self.$field)?;
                    }
                )*
                written.end()
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use $crate::sparse::Fields;
                let is_named = serializer.is_human_readable();
                self.write(serializer, if is_named { Fields::Set } else { Fields::All })
            }
        }

        impl serde::Serialize for $crate::sparse::Complete<'_, $name> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.0.write(serializer, $crate::sparse::Fields::All)
            }
        }
    };
}

pub(crate) use sparse;
