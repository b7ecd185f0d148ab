package main

import (
	"os/exec"
	"strings"
	"testing"
)

// Without the headers of libibverbs and librdmacm the build names both packages.
func TestHeadersMissing(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(err)
	}
	err := findHeaders("-nostdinc")
	for _, want := range []string{"libibverbs-dev", "librdmacm-dev"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want that it names %s", err, want)
		}
	}
}

// Without gcc it says so, and names the packages too.
func TestCompilerMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if err := findHeaders(); err == nil || !strings.Contains(err.Error(), "no gcc") || !strings.Contains(err.Error(), "libibverbs-dev") {
		t.Errorf("%v, want that it names gcc", err)
	}
}
