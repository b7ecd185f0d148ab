package main

import (
	"os"
	"strings"
	"testing"
)

// TestHandlerStack: one number changes in the runtime of this version of Go. Of another text,
// nothing is guessed.
func TestHandlerStack(t *testing.T) {
	path, err := runtimeProc(".")
	if err != nil {
		t.Fatal(err)
	}
	proc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := withHandlerStack(proc)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(string(proc), "gp := malg(4096)", "gp := malg(98304)", 1); string(got) != want || want == string(proc) {
		t.Error("another place has changed")
	}
	if _, err := withHandlerStack([]byte("package runtime\n\nfunc oneNewExtraM() {\n\tgp := newg()\n}\n")); err == nil {
		t.Error("a runtime without the place was accepted")
	}
}
