"""Sentences of pages that interpret a record: what they say is what the record has."""

from ane_book_pages import records


class TestCoreAI:
    RECORD = records.read("measurements/core_ai.json")

    def test_all_tokens_are_equal_in_both_precisions(self):
        rows = [row for part in ("tokens", "tokens_fp16") for row in self.RECORD[part]]
        assert all(row["equal"] == row["tokens"] == 24 for row in rows)
        decoders = [r for r in self.RECORD["families"].values() if r["kind"] == "decoder"]
        assert all(row["equal"] == row["tokens"] > 2 for row in decoders)

    def test_a_layer_is_a_few_parts_from_pytorch(self):
        for row in self.RECORD["rows"]:
            assert row["difference"] < (5e-6 if row["precision"] == "fp32" else 1e-2), row

    def test_no_op_and_no_package_gives_other_numbers(self):
        carried = [row for row in self.RECORD["wild"] if "refused" not in row]
        assert max(row["difference"] for row in carried) < 1e-5
        assert not self.RECORD["op_tests"]["failed"]

    def test_compressed_weights_take_the_runtime_much_longer(self):
        longer = {row["quant"]: row["times_as_long"] for row in self.RECORD["tokens"]}
        assert 5 < longer["none"] < 30 and min(longer["int8"], longer["lut4"]) > 100

    def test_a_damaged_asset_gives_an_error_or_the_same_numbers(self):
        damaged = self.RECORD["assets"]["damaged"]
        assert damaged["other"] == 0 and damaged["same"] == 1 and sum(damaged.values()) == 300

    def test_old_assets_end_the_process_from_the_second_beta_on(self):
        of_old = self.RECORD["assets"]["of_coreai_torch_0.4.0"]
        assert [*of_old.items()] == [("1.0.0b1", 0), ("1.0.0b2", -6), ("1.0.0b3", -6)]


class TestServing:
    def test_small_models_call_the_right_tool_with_wrong_arguments(self):
        tasks = records.read("measurements/agent_tasks.json")
        assert tasks["valid"] == tasks["calls"] >= tasks["tasks"] == 10
        assert tasks["right_tool_first"] == tasks["tasks"]
        made = " ".join(call for each in tasks["each"] for _, call in each["calls"])
        for wrong in ('"b": 23, "operation": "add"', '"path": "w"', "mail_to_today"):
            assert wrong in made

    def test_of_drawn_answers_two_are_cut_and_two_invalid(self):
        answers = records.read("measurements/schema_forms.json")["answers"]
        assert answers["cut"] == answers["invalid"] == 2
