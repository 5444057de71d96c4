"""Words for patterns that a reader can't take in at a glance.

An API server refuses text by quoting the pattern; where that says nothing to people, the CRD has a rule with words in
the pattern's place. The words follow the field's name, which both stores put in front. Patterns that speak for
themselves (names, digests, aliases) stay patterns: they are also checked where a document has errors that keep rules
from running.
"""

from covey_api.access_key import EXPIRY_PATTERN
from covey_api.meta import LABEL_KEY_PATTERN, LABEL_VALUE_PATTERN
from covey_api.node import ABSOLUTE_PATH_PATTERN
from covey_api.source import SIGNATURE_PATTERN, SIGNATURE_WORDS, SOURCE_PATTERN, SOURCE_WORDS
from covey_api.units import QUANTITY_PATTERN

PATTERN_WORDS = {
    EXPIRY_PATTERN: "must be a time in UTC such as '2027-01-31T00:00:00Z'",
    LABEL_KEY_PATTERN: "must be a name such as 'owner' or 'example.com/owner'",
    LABEL_VALUE_PATTERN: "must be letters, digits, '-', '_' and '.', with a letter or digit at both ends",
    ABSOLUTE_PATH_PATTERN: "must be an absolute path without control characters",
    SIGNATURE_PATTERN: SIGNATURE_WORDS,
    SOURCE_PATTERN: SOURCE_WORDS,
    QUANTITY_PATTERN: "must be digits with an optional suffix such as '512Mi' or '16Gi'",
}
