//go:build linux

package main

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// TestPrerequisites: without the compiler, the error names the packages to install.
func TestPrerequisites(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := build(t.TempDir(), true)
	if !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "gcc, libc6-dev, libibverbs-dev and librdmacm-dev") {
		t.Errorf("without gcc: %v", err)
	}
}

// TestHeaders: without the headers, the error names the packages to install.
func TestHeaders(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(err)
	}
	if err := prerequisites("-nostdinc"); err == nil || !strings.Contains(err.Error(), "libibverbs-dev and librdmacm-dev") {
		t.Errorf("without the headers: %v", err)
	}
}
