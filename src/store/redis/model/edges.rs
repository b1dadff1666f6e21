//! Single cases that random histories hit too seldom.
