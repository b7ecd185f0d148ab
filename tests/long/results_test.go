package main

import (
	"maps"
	"os"
	"testing"
)

// TestPlan: each line of the plan has its own name.
func TestPlan(t *testing.T) {
	plan, err := readPlan("plan")
	if err != nil || len(plan) == 0 {
		t.Fatalf("%d lines: %v", len(plan), err)
	}
	seen := map[string]bool{}
	for _, l := range plan {
		if seen[l.name] {
			t.Errorf("%s is there twice", l.name)
		}
		seen[l.name] = true
	}
}

// TestResults: results that were written are read again, except for lines that are no longer in the
// plan.
func TestResults(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	want := map[string]result{
		"a": {"0123456789ab", "2026-11-26", 12, passed, "10000 QPs: 700 bytes each"},
		"b": {"0123456789ab+", "2026-11-26", 0, "FAILED", ""},
	}
	plan := []line{{name: "b"}, {name: "never run"}, {name: "a"}}
	all := maps.Clone(want)
	all["gone"] = result{"0", "2026-11-25", 1, passed, ""}
	if err := writeResults(plan, all); err != nil {
		t.Fatal(err)
	}
	got, err := readResults()
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("read %v (%v), want %v", got, err, want)
	}
}
