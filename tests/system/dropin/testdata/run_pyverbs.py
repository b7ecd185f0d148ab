# Runs tests of pyverbs: run_pyverbs.py DIRECTORY MODULES DEVICE GID. DIRECTORY has the package
# "tests" of rdma-core. Each test prints a line "result test reason" on stdout.
import sys
import unittest

directory, modules, device, gid = sys.argv[1:]
sys.path[:0] = [directory, directory + '/tests']
sys.argv[1:] = ['--dev', device, '--gid', gid]

from args_parser import parser
parser.parse_args()


class Result(unittest.TextTestResult):
    def say(self, what, test, why=''):
        print(what, test.id().removeprefix('tests.'), ' '.join(why.split()), flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.say('ok', test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say('skipped', test, reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say('failed', test, str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        self.say('failed', test, str(err[1]))


names = ['tests.' + m for m in modules.split(',')]
suite = unittest.TestSuite(unittest.TestLoader().loadTestsFromNames(names))
unittest.TextTestRunner(resultclass=Result, verbosity=0).run(suite)
