package iwarp_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The rows of rfc*_test.go name, for each requirement of the iWARP RFCs, the tests that show it, or
// why no test can.

// A requirement is a statement of an RFC with MUST or MUST NOT, in our words.
type requirement struct {
	section string
	musts   int // the number of the RFC's MUSTs that this row covers
	what    string
	proof
	outside
}

// proof has either tests or a reason.
type proof struct {
	tests []string // as directory.Function, with the last directory only
	why   string
}

func by(tests ...string) proof { return proof{tests: tests} }

func none(why string) proof { return proof{why: why} }

// outside has the cases of softrnic conform that check a requirement from outside, or why no peer
// can check it. A * at the end of an ID matches any ending.
type outside struct {
	cases  []string
	unseen string
}

func seen(cases ...string) outside { return outside{cases: cases} }

func unseen(why string) outside { return outside{unseen: why} }

// Reasons why no case checks a requirement. Requirements whose reason begins with "no case" could
// have one.
var (
	asks         = unseen("the target's ULP requests it: the interface permits nothing else")
	local        = unseen("within the target: the wire is the same")
	fault        = unseen("an error of the target itself, which a peer cannot cause")
	several      = unseen("of several streams or ULPs of the target; the tester has one")
	singleStream = unseen("of a lower layer with several streams; a TCP connection has one")
	items        = unseen("introduces a list whose items have their own rows")
	guess        = unseen("a property of many STags, and of how they are made")
	tcp          = unseen("TCP's matter: it neither repeats nor reorders, and has nothing after FIN")
	ipsecOutside = unseen("IPsec is the hosts'")
	sctpOutside  = unseen("of DDP over SCTP; the target has TCP")
	wrap         = unseen("takes 2^32 messages")
	big          = unseen("takes a message of 4 GiB")
	depth        = unseen("whether a READ is one too many depends on how many the target has answered, which is its own")
	sequence     = unseen("takes 4 GiB on one connection: the target draws its first TCP sequence number")
	mss          = unseen("no case: the tester's TCP announces no MSS below 128 bytes")
	refusal      = unseen("what the target's ULP does: it may take less instead of refusing, as that of the responder does")
	client       = unseen("what the target is set up for: the tester sees the mode that the request has, INIT-CLIENT-RTR what goes with it")
	old          = unseen("of a target that knows no enhanced frames")
)

// Reasons of several requirements.
var (
	ipsec      = none("deviation: IPsec is the host's; SoftRNIC has none")
	sctp       = none("DDP over SCTP, which SoftRNIC does not have")
	inOrder    = none("TCP is received in order: no ULPDU is ever passed out of it")
	oneStream  = none("MPA has one stream a connection: it ends with it")
	oneProcess = none("one process is one ULP: all callers of the API trust each other, and the operating system separates processes")
	noFirmware = none("there is no firmware")
	asked      = none("a requirement for the application; the API has no other call")
	heading    = none("introduces a list whose items have their own rows")
)

var rfcs = []struct {
	number string
	// MUST, MUST NOT, SHALL and SHALL NOT in the text, except those in the definition of the words.
	musts int
	rows  []requirement
}{
	{"5040", 132, rfc5040},
	{"5041", 109, rfc5041},
	{"5044", 91, rfc5044},
	{"6581", 44, rfc6581},
	{"7306", 62, rfc7306},
}

// TestRequirements fails if a requirement has neither a test nor a reason, or if a test does not
// exist.
func TestRequirements(t *testing.T) {
	exists := testFunctions(t, "../../../../..")
	missing := make(map[string][]string)
	for _, rfc := range rfcs {
		sum := 0
		for _, r := range rfc.rows {
			sum += r.musts
			where := "RFC " + rfc.number + " §" + r.section + ", " + r.what
			if (len(r.tests) == 0) == (r.why == "") {
				t.Errorf("%s: needs either tests or a reason for none", where)
			}
			for _, test := range r.tests {
				if !exists[test] {
					missing[test] = append(missing[test], where)
				}
			}
		}
		if sum != rfc.musts {
			t.Errorf("RFC %s: rows for %d MUSTs, and it has %d", rfc.number, sum, rfc.musts)
		}
	}
	for _, test := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("no %s, which has to show:\n\t%s", test, strings.Join(missing[test], "\n\t"))
	}
}

// testFunctions returns the tests in all _test.go files below root.
func testFunctions(t *testing.T, root string) map[string]bool {
	t.Helper()
	found := make(map[string]bool)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		abs, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil &&
				(strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz")) {
				found[filepath.Base(filepath.Dir(abs))+"."+f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
