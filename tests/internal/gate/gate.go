// Package gate assigns each test to one of three runs:
//
//   - go test ./... needs only Go and does not change the machine.
//   - The system run, go run ./tests/system, sets SOFTRNIC_SYSTEM. It installs Debian packages and
//     boots virtual machines.
//   - The long run, .ci/run long, sets SOFTRNIC_LONG. It takes hours, and no other run includes it.
package gate

import (
	"cmp"
	"os"
	"testing"
)

// InSystem reports whether this is the system run or the long run.
func InSystem() bool { return os.Getenv("SOFTRNIC_SYSTEM") != "" || InLong() }

// InLong reports whether this is the long run.
func InLong() bool { return os.Getenv("SOFTRNIC_LONG") != "" }

// System skips a test of the whole system in every other run.
func System(t testing.TB) {
	t.Helper()
	if !InSystem() {
		t.Skip("this test belongs to the system run: go run ./tests/system")
	}
}

// OfLongRun is the reason with which Long skips a test.
const OfLongRun = "this test belongs to the long run: .ci/run long"

// Long skips a test that belongs to the long run.
func Long(t testing.TB) {
	t.Helper()
	if !InLong() {
		t.Skip(OfLongRun)
	}
}

// SuiteVariable is the environment variable with the release of Debian from which the system run
// takes the kernel and the programs of Linux peers.
const SuiteVariable = "SOFTRNIC_SUITE"

// Suite is that release: bookworm unless the variable names another.
func Suite() string { return cmp.Or(os.Getenv(SuiteVariable), "bookworm") }
