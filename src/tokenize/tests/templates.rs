//! Chat templates as models ship them, against what Jinja2 makes of them.

use super::*;

const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}\
    {% if add_generation_prompt %}<assistant>{% endif %}";

fn render(template: &str, body: &Json) -> Result<String, TokenizeError> {
    rendered(&ModelDir::new().with_template(template).load(), body)
}

fn check(template: &str, body: &Json, expected: &str) {
    assert_eq!(render(template, body).unwrap(), expected);
}

fn says(content: &Json) -> Json {
    json!({"messages": [{"role": "user", "content": content}], "add_generation_prompt": false})
}

fn weather() -> Json {
    let function = json!({"name": "w", "arguments": "{\"city\": \"Oslo\", \"days\": 2}"});
    json!({"messages": [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "4 C"},
    ]})
}

fn with_tool() -> Json {
    let parameters = json!({"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}},
        "required": ["z"]});
    let function = json!({"name": "f", "description": "日本 <b>&'", "parameters": parameters});
    json!({"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function": function}]})
}

const DUMPED_TOOL: &str = "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"日本 <b>&'\", \
    \"parameters\": {\"type\": \"object\", \"properties\": {\"z\": {\"type\": \"string\"}, \
    \"a\": {\"type\": \"integer\"}}, \"required\": [\"z\"]}}}";

#[test]
fn null_content_is_written_as_nothing() {
    check(
        PLAIN,
        &weather(),
        "<user>weather?\n<assistant>\n<tool>4 C\n<assistant>",
    );
}

#[test]
fn tool_arguments_are_dumped_as_the_value_they_stand_for() {
    let template = "{% for m in messages %}{% for c in m.tool_calls or [] %}\
        {{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    check(template, &weather(), "{\"city\": \"Oslo\", \"days\": 2}");
    let call = |arguments: Json| {
        json!({"messages": [{"role": "assistant", "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]})
    };
    check(template, &call(json!("")), "{}");
    check(template, &call(json!(null)), "{}");
    check(template, &call(json!("not json")), "\"not json\"");
    check(template, &call(json!({"a": 1})), "{\"a\": 1}");
    check(
        template,
        &call(json!("[".repeat(500))),
        &format!("\"{}\"", "[".repeat(500)),
    );
}

#[test]
fn a_dump_keeps_key_order_and_writes_what_python_writes() {
    check("{{ tools[0] | tojson }}", &with_tool(), DUMPED_TOOL);
    check(
        "{{ tools[0] | tojson(ensure_ascii=False) }}",
        &with_tool(),
        DUMPED_TOOL,
    );
    let escaped = DUMPED_TOOL.replace("日本", "\\u65e5\\u672c");
    check(
        "{{ tools[0] | tojson(ensure_ascii=True) }}",
        &with_tool(),
        &escaped,
    );
    check(
        "{{ {'b': 1, 'a': [1.0, 2e20, none]} | tojson(sort_keys=true, separators=(',', ':')) }}",
        &with_tool(),
        "{\"a\":[1.0,2e+20,null],\"b\":1}",
    );
    check(
        "{{ '\\u0001\\t\"\\\\\\x7f\u{1f600}' | tojson }}",
        &with_tool(),
        "\"\\u0001\\t\\\"\\\\\u{7f}\u{1f600}\"",
    );
}

#[test]
fn a_dump_can_be_indented() {
    let template = "{% if tools[0].function %}{{ tools[0].function.parameters | tojson(indent=4) }}{% endif %}";
    let expected = "{\n    \"type\": \"object\",\n    \"properties\": {\n        \"z\": {\n            \
        \"type\": \"string\"\n        },\n        \"a\": {\n            \"type\": \"integer\"\n        }\n    },\n    \
        \"required\": [\n        \"z\"\n    ]\n}";
    check(template, &with_tool(), expected);
    check(
        "{{ [[], {}] | tojson(indent=2) }}",
        &with_tool(),
        "[\n  [],\n  {}\n]",
    );
}

#[test]
fn generation_tags_are_passed_over() {
    let template = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}A:{{ m.content }}\
        {% endgeneration %}{% else %}U:{{ m.content }}{% endif %}{% endfor %}";
    let body = json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]});
    check(template, &body, "U:hiA:yo");
}

#[test]
fn lists_are_walked_backwards_and_namespaces_keep_what_is_set() {
    let template = "{%- set ns = namespace(i=messages|length - 1, found=false) %}{%- for m in messages[::-1] %}\
        {%- set idx = (messages|length - 1) - loop.index0 %}{%- if not ns.found and m.role == 'user' %}\
        {%- set ns.i = idx %}{%- set ns.found = true %}{%- endif %}{%- endfor %}last={{ ns.i }}";
    let say = |role: &str| json!({"role": role, "content": "x"});
    let body = json!({"messages": [say("user"), say("assistant"), say("user"), say("assistant")]});
    check(template, &body, "last=2");
}

#[test]
fn text_has_the_methods_it_has_in_python() {
    let template = "{% for m in messages %}{% if m.role == 'assistant' %}\
        {{ m.content.split('</think>')[-1].lstrip('\\n') }}|{{ m.content.startswith('<think>') }}|{{ ' x '.strip() }}\
        {% endif %}{% endfor %}";
    let body = json!({"messages": [{"role": "user", "content": "hi"},
        {"role": "assistant", "content": "<think>why</think>\n\nanswer"}]});
    check(template, &body, "answer|True|x");
}

#[test]
fn blocks_are_trimmed_as_the_worker_trims_them() {
    let template = "{% for m in messages %}\n    {% if m.role == 'user' %}\n  [U] {{ m.content }}\n    \
        {%- endif %}\n{% endfor %}\nend";
    let hi = json!({"role": "user", "content": "hi"});
    let body = json!({"messages": [hi, hi]});
    check(template, &body, "  [U] hi  [U] hiend");
    check(
        &template.replace('\n', "\r\n"),
        &body,
        "  [U] hi  [U] hiend",
    );
    check("a\n", &body, "a");
}

#[test]
fn a_template_may_refuse_and_its_words_reach_the_client() {
    let template = "{% if messages[0].role != 'user' %}{{ raise_exception('first turn must be user') }}{% endif %}x";
    let body = json!({"messages": [{"role": "assistant", "content": "a"}]});
    let error = render(template, &body).unwrap_err();
    assert!(matches!(error, TokenizeError::Refused { .. }), "{error:?}");
    assert!(
        error.to_string().contains("first turn must be user"),
        "{error}"
    );
    let long = format!("{{{{ raise_exception('{}') }}}}", "y".repeat(5_000));
    assert!(render(&long, &body).unwrap_err().to_string().len() < 1_000);
    let in_macro = "{% macro m() %}{{ raise_exception('inner') }}{% endmacro %}{{ m() }}";
    assert!(
        matches!(render(in_macro, &body).unwrap_err(), TokenizeError::Refused { message } if message == "inner")
    );
}

#[test]
fn a_template_that_fails_is_not_the_clients_fault() {
    for template in [
        "{{ messages.nope.nope }}",
        "{{ 1 / 0 }}",
        "{{ x() }}",
        "{{ undefined_thing | tojson }}",
    ] {
        let error = render(template, &says(&json!("hi"))).unwrap_err();
        assert_eq!(
            error,
            TokenizeError::Degraded(Degraded::Template),
            "{template}"
        );
    }
}

#[test]
fn tools_are_always_defined() {
    let template = "{% if tools is defined and tools is not none %}TOOLS{% endif %}{% if not tools %}none{% endif %}";
    check(template, &says(&json!("hi")), "none");
    let mut empty = says(&json!("hi"));
    empty["tools"] = json!([]);
    check(template, &empty, "none");
    check(template, &with_tool(), "TOOLS");
}

#[test]
fn refused_tools_stay_unless_configured_otherwise() {
    let dir = ModelDir::new().with_template("{% if tools %}T{% endif %}{{ messages[0].content }}");
    let mut body = with_tool();
    body["tool_choice"] = json!("none");
    assert_eq!(rendered(&dir.load(), &body).unwrap(), "Thi");
    let config = TokenizeConfig {
        keep_refused_tools: false,
        ..TokenizeConfig::default()
    };
    assert_eq!(rendered(&dir.load_with(config), &body).unwrap(), "hi");
}

#[test]
fn parts_are_joined_for_a_template_that_wants_text() {
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    check(PLAIN, &says(&parts), "<user>a\nb\n");
    check(
        PLAIN,
        &says(&json!(["a", {"type": "input_text", "text": "b"}])),
        "<user>a\nb\n",
    );
    check(PLAIN, &says(&json!([])), "<user>\n");
}

#[test]
fn parts_stay_parts_for_a_template_that_loops_over_them() {
    let template = "{% for m in messages %}{% for p in m.content %}[{{ p.type }}:{{ p.text }}]{% endfor %}{% endfor %}";
    check(
        template,
        &says(&json!([{"type": "text", "text": "a"}, "b"])),
        "[text:a][text:b]",
    );
    check(template, &says(&json!("a")), "[text:a]");
    check(template, &says(&json!(null)), "");
    let either = format!("{{% if messages[0].content is string %}}S{{% endif %}}{template}");
    assert!(
        render(&either, &says(&json!("a")))
            .unwrap()
            .starts_with('S')
    );
}

#[test]
fn content_that_is_not_text_ends_the_prefix() {
    let parts = json!([{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "hologram", "x": 1}]);
    let body = json!({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": parts},
        {"role": "user", "content": "later"}]});
    check(PLAIN, &body, "<system>S\n<user>");
    let loops = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}\
        {% if p.type == 'text' %}{{ p.text }}{% else %}<image>{% endif %}{% endfor %}{% endfor %}";
    check(loops, &body, "<system>S<user>hi");
    let drops = "{% for m in messages %}{{ m.role }}{% endfor %}";
    assert_eq!(
        render(drops, &body).unwrap_err(),
        TokenizeError::Degraded(Degraded::NotText)
    );
}

#[test]
fn of_named_templates_the_one_for_tools_serves_tools() {
    let templates = json!([{"name": "tool_use", "template": "T:{{ messages[0].content }}"},
        {"name": "default", "template": "D:{{ messages[0].content }}"}]);
    let config = json!({"chat_template": templates}).to_string();
    let tokenizer = ModelDir::new().with("tokenizer_config.json", config).load();
    assert_eq!(rendered(&tokenizer, &says(&json!("hi"))).unwrap(), "D:hi");
    assert_eq!(rendered(&tokenizer, &with_tool()).unwrap(), "T:hi");
}

#[test]
fn a_template_in_its_own_file_wins() {
    let dir = ModelDir::new().with_template("OLD:{{ messages[0].content }}");
    let dir = dir.with("chat_template.jinja", "NEW:{{ messages[0].content }}");
    assert_eq!(
        rendered(&dir.load(), &says(&json!("hi"))).unwrap(),
        "NEW:hi"
    );
}

#[test]
fn the_clients_template_arguments_reach_the_template() {
    let template = "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}\
        {{ messages[0].content }}";
    let mut body = says(&json!("hi"));
    check(template, &body, "hi");
    body["chat_template_kwargs"] = json!({"enable_thinking": false, "messages": []});
    check(template, &body, "<think></think>hi");
}

#[test]
fn reasoning_is_seen_under_both_names_and_never_put_into_content() {
    let body = |name: &str| {
        json!({"messages": [{"role": "user", "content": "hi"},
            {"role": "assistant", "content": "answer", name: "PRIOR"}], "add_generation_prompt": false})
    };
    check(
        PLAIN,
        &body("reasoning_content"),
        "<user>hi\n<assistant>answer\n",
    );
    check(PLAIN, &body("reasoning"), "<user>hi\n<assistant>answer\n");
    for name in ["reasoning", "reasoning_content"] {
        check("{{ messages[1].reasoning_content }}", &body(name), "PRIOR");
    }
}

#[test]
fn what_is_missing_or_null_reads_as_undefined() {
    let template = "{% for m in messages %}{{ m.name }}{{ m.name | default('-') }}{{ m.tool_calls is defined }}\
        {% if m.tool_calls %}!{% endif %}{% endfor %}";
    check(template, &says(&json!("hi")), "-False");
    let nulls =
        json!({"messages": [{"role": "user", "content": "hi", "name": null, "tool_calls": null}]});
    check(template, &nulls, "-False");
}

#[test]
fn common_loop_names_and_filters_work() {
    let template = "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ m.role | upper }}\
        {% if not loop.last %},{% endif %}{% endfor %};{{ messages | map(attribute='role') | join('+') }};\
        {{ messages | selectattr('role', 'equalto', 'user') | list | length }};{{ '  q ' | trim }}";
    let body = json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}]});
    check(
        template,
        &body,
        "0TrueFalseUSER,1FalseTrueASSISTANT;user+assistant;1;q",
    );
    check(
        "{{ none }}{{ [true, none, 'a', 1.5] }}{{ {'a': 1} }}{{ 1.0 }}{{ 1e20 }}",
        &body,
        "None[True, None, 'a', 1.5]{'a': 1}1.01e+20",
    );
    check(
        "{{ 'a' is iterable }}{{ {} is sequence }}{{ 1 is iterable }}",
        &body,
        "TrueTrueFalse",
    );
    check(
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
        &body,
        "assistant",
    );
    check(
        "{{ bos_token }}{{ eos_token }}{{ pad_token }}",
        &body,
        "<s></s>",
    );
}

#[test]
fn a_final_message_can_be_continued() {
    let body = |content: &str| {
        json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}],
            "continue_final_message": true})
    };
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% endif %}";
    check(
        template,
        &body("once upon"),
        "<user>hi<end><assistant>once upon",
    );
    check(template, &body("once "), "<user>hi<end><assistant>once ");
    let trims = template.replace("m.content", "m.content | trim");
    check(&trims, &body("once "), "<user>hi<end><assistant>once");
}

#[test]
fn a_date_is_written_in_the_format_asked_for() {
    let year = render("{{ strftime_now('%d %b %Y') }}", &says(&json!("hi"))).unwrap();
    assert_eq!((year.len(), &year[7..9]), (11, "20"), "{year}");
}

#[test]
fn a_template_cannot_write_without_bound() {
    let config = TokenizeConfig {
        max_text_bytes: 100_000,
        ..TokenizeConfig::default()
    };
    let endless =
        "{% for i in range(99999) %}{% for j in range(99999) %}xxxxxxxx{% endfor %}{% endfor %}";
    let tokenizer = ModelDir::new().with_template(endless).load_with(config);
    let error = rendered(&tokenizer, &says(&json!("hi"))).unwrap_err();
    assert_eq!(error, TokenizeError::Degraded(Degraded::TooLong));
    let recursive = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    assert_eq!(
        render(recursive, &says(&json!("hi"))).unwrap_err(),
        TokenizeError::Degraded(Degraded::Template)
    );
}

#[test]
fn a_template_cannot_run_without_bound() {
    let idle = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    assert_eq!(
        render(idle, &says(&json!("hi"))).unwrap_err(),
        TokenizeError::Degraded(Degraded::Template)
    );
}

#[test]
fn a_template_that_does_not_compile_stops_the_load_and_is_named() {
    let dir = ModelDir::new().with_template("{% if %}");
    let error = Tokenizer::load(&dir.0, TokenizeConfig::default()).unwrap_err();
    assert!(error.to_string().contains("default"), "{error}");
}
