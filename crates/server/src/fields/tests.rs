use super::*;

fn fields(text: &str) -> Fields {
    Fields::parse(text.as_bytes()).expect("valid JSON")
}

#[test]
fn null_is_absence_for_every_type() {
    let mut f = fields(r#"{"a":null,"b":null,"c":null,"d":null,"e":null}"#);
    assert_eq!(f.take_bool("a"), Ok(None));
    assert_eq!(f.take_strings("b"), Ok(None));
    assert_eq!(f.take_f32("c", 0.0..=1.0), Ok(None));
    assert_eq!(f.take_int("d", 0..=1), Ok(None));
    assert_eq!(f.take_token_ids("e", 10), Ok(None));
}

#[test]
fn wrong_types_and_ranges_name_the_field() {
    for text in [
        r#"{"t":999999}"#,
        r#"{"t":"inf"}"#,
        r#"{"t":"1"}"#,
        r#"{"t":-1}"#,
        r#"{"t":[]}"#,
        r#"{"t":true}"#,
    ] {
        let error = fields(text).take_f32("t", 0.0..=2.0).expect_err(text);
        assert_eq!(error, ApiError::field("t", "must be a number from 0 to 2"));
    }
}

#[test]
fn integral_floats_are_integers_and_others_are_not() {
    assert_eq!(fields(r#"{"n":5.0}"#).take_int("n", 1..=9), Ok(Some(5)));
    assert!(fields(r#"{"n":5.5}"#).take_int("n", 1..=9).is_err());
    assert!(
        fields(r#"{"n":1e300}"#)
            .take_int("n", 1..=i64::MAX)
            .is_err()
    );
}

#[test]
fn seeds_take_the_whole_of_64_bits_and_no_more() {
    assert_eq!(
        fields(r#"{"s":18446744073709551615}"#).take_seed("s"),
        Ok(Some(u64::MAX))
    );
    assert_eq!(fields(r#"{"s":-1}"#).take_seed("s"), Ok(Some(u64::MAX)));
    assert!(
        fields(r#"{"s":18446744073709551616}"#)
            .take_seed("s")
            .is_err()
    );
    assert!(fields(r#"{"s":1.5}"#).take_seed("s").is_err());
}

#[test]
fn token_ids_outside_the_vocabulary_are_refused() {
    assert_eq!(
        fields(r#"{"p":[0,9]}"#).take_token_ids("p", 10),
        Ok(Some(vec![0, 9]))
    );
    for text in [
        r#"{"p":[10]}"#,
        r#"{"p":[-1]}"#,
        r#"{"p":["1"]}"#,
        r#"{"p":3}"#,
    ] {
        assert!(fields(text).take_token_ids("p", 10).is_err(), "{text}");
    }
}

#[test]
fn lone_surrogates_and_invalid_utf8_are_malformed() {
    assert!(matches!(
        Fields::parse(br#"{"a":"\ud800"}"#),
        Err(ApiError::MalformedJson { .. })
    ));
    assert!(matches!(
        Fields::parse(b"{\"a\":\"\xff\"}"),
        Err(ApiError::MalformedJson { .. })
    ));
    assert!(matches!(
        Fields::parse(b"{\"a\":NaN}"),
        Err(ApiError::MalformedJson { .. })
    ));
    assert_eq!(Fields::parse(b"[]").err(), Some(ApiError::NotAnObject));
}

/// Keeps the fields of every event.
#[derive(Clone, Default)]
struct Recorder(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::Subscriber for Recorder {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Values(String);
        impl tracing::field::Visit for Values {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{field}={value:?};");
            }
        }
        let mut values = Values(String::new());
        event.record(&mut values);
        self.0.lock().expect("unpoisoned").push(values.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn unknown_fields_are_ignored_and_logged_by_name_without_their_values() {
    let recorder = Recorder::default();
    tracing::subscriber::with_default(recorder.clone(), || {
        let mut f = fields(r#"{"known":1,"novelty":"a secret","zoo":[]}"#);
        assert_eq!(f.take_int("known", 0..=9), Ok(Some(1)));
        f.finish();
        fields("{}").finish();
    });
    let events = recorder.0.lock().expect("unpoisoned").clone();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].contains("novelty") && events[0].contains("zoo"));
    assert!(!events[0].contains("secret") && !events[0].contains("known\""));
}
