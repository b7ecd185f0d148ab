package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// long is whether the long form of a test is wanted (.ci/run long).
var long = os.Getenv("SOFTRNIC_LONG") == "1"

// report is a table of results. With SOFTRNIC_REPORT=1 the long form of its test writes it to the directory reports.
type report struct {
	strings.Builder
	wanted bool
}

func newReport(t *testing.T, head string) *report {
	r := &report{wanted: long && os.Getenv("SOFTRNIC_REPORT") == "1"}
	r.printf("Written by %s.\n\n%s", t.Name(), head)
	return r
}

func (r *report) printf(format string, args ...any) { fmt.Fprintf(r, format, args...) }

func (r *report) write(t *testing.T, name string) {
	if r.wanted {
		ok(t, os.WriteFile(filepath.Join("reports", name), []byte(r.String()), 0o666))
	}
}
