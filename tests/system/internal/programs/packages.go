package programs

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// trial is what is known of packages that have no row in the table of programs.
type trial struct {
	packages string // of Debian, or projects, in words
	versions string // with which it was tried, or ""
	result   string // in Markdown
}

// renderTrials returns the table in Markdown.
func renderTrials() string {
	var b strings.Builder
	b.WriteString("| package | version | result |\n|---|---|---|\n")
	for _, t := range trials {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", strings.ReplaceAll(t.packages, " ", ", "), t.versions, t.result)
	}
	return b.String()
}

// rdmaLibrary matches a dependency on a library of rdma-core. Debian 13 renamed two of them.
var rdmaLibrary = regexp.MustCompile(`(^|[ ,|])(libibverbs1|librdmacm1(t64)?|libibumad3|libibmad5|libibnetdisc5(t64)?)([ ,(:]|$)`)

// Untried returns the packages in an index of Debian that depend on a library of rdma-core, and
// stand in none of the tables. The index is as apt-cache dumpavail prints it. directory is that of
// this package.
func Untried(index io.Reader, directory string) ([]string, error) {
	runs, err := load(directory)
	if err != nil {
		return nil, err
	}
	var known []string
	for _, r := range runs {
		name, _, _ := strings.Cut(r.Package, " ")
		known = append(known, name)
	}
	for _, t := range trials {
		known = append(known, strings.Fields(t.packages)...)
	}
	return untried(index, known)
}

// untried returns the packages in an index that depend on a library of rdma-core, except the known
// ones.
func untried(index io.Reader, known []string) ([]string, error) {
	var found []string
	lines := bufio.NewScanner(index)
	lines.Buffer(nil, 1<<20)
	name := ""
	for lines.Scan() {
		switch field, value, _ := strings.Cut(lines.Text(), ": "); field {
		case "Package":
			name = value
		case "Depends", "Pre-Depends", "Recommends":
			if rdmaLibrary.MatchString(value) && !slices.Contains(known, name) && !slices.Contains(found, name) {
				found = append(found, name)
			}
		}
	}
	slices.Sort(found)
	return found, lines.Err()
}
