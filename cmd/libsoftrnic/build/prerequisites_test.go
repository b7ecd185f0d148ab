//go:build linux

package main

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// TestPrerequisites: who lacks the compiler is told which packages to install.
func TestPrerequisites(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := build(t.TempDir(), true)
	if !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "gcc, libc6-dev, libibverbs-dev and librdmacm-dev") {
		t.Errorf("without gcc: %v", err)
	}
}
